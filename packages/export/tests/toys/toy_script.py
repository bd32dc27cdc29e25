"""Predict IMAGE.npy without runner: python predict.py IMAGE.npy OUT.npy."""

import json
import sys
from pathlib import Path

import numpy as np
import session

settings = json.loads(Path(__file__).with_name("predict.json").read_text())
image = np.load(sys.argv[1], allow_pickle=False)
logits = session.load()({"image": image[None]})["prediction"][0, 0]
np.save(sys.argv[2], (logits > settings["threshold"]).astype(np.uint8))
