"""Serve a trained network over HTTP: `runner PROJECT serve RUN`.

    command     the flags, the token, the listening socket
    app         HTTP: what may be asked, and by whom; limits of size, time and number
    worker      the process with the network, as the server sees it: started, asked, killed
    child       the same process from within: reads an upload, predicts, writes the answer
    archives    zip archives that come in (hostile ones too) and go out

runner imports this module at every start, so it holds nothing else.
"""
