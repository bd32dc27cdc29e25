"""DICOM in and out: a CT series with its RT Structure Set becomes a patient, a predicted dose an RT Dose."""
