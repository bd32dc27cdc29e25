"""Write trained networks as ONNX, OpenVINO or torch.export: `runner PROJECT export RUN --to FORMAT`.

    formats     the functions behind `--to`, one a format
    window      what is exported: the network as `predict` calls it, from stored arrays to outputs
    write       the files of a network in each format
    keras_network, keras_file, plain   Keras's networks as OpenVINO, and as Keras's own file, which plain Keras opens
    quantise    8-bit integers, calibrated on records
    parity      the comparison with the checkpoint
    latency     how fast each runtime is, in alternation
    beside      export.json, README.md, predict.py and what it reads
    session     the exported network without runner: it is copied beside it

runner imports this module at every start, so it holds nothing else.
"""
