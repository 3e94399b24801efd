//! Submission to verdict; the Python harness is embedded here.
