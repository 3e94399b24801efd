//! Runs one untrusted command under limits.
