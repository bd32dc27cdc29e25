"""Steps of `preprocess.steps`: spectra in, spectra out, each pixel by itself."""
