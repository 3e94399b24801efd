//! Workers and controllers over a real server.

mod all {
    mod jobs;
    mod policies;
    mod sharing;
}
mod common;
