//! Workers and controllers over a real server.

mod all {
    mod door;
    mod jobs;
    mod policies;
    mod sharing;
}
mod common;
