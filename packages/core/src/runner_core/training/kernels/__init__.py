"""Prove before the first step that the kernels which will train compute what plain operations compute.

  options  what a training computes with besides plain eager float32, and the settings that do without it
  proof    the comparison: the training's own network and first batch, as trained and by plain operations in float32
  verdict  what was found, in words
  known    what was found before about the same network, options, versions and device, in the cache folder
  check    the capability: prove a training, verify by itself, switch off what is wrong

The networks are made for this alone, so nothing of it reaches the training.
"""
