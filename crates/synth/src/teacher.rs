//! A policy that solves composed tasks because it reads their graphs.
