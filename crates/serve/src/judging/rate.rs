//! How often anything may be asked, by all clients together.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::sync::Arc;

use crate::problem::Problem;

/// Requests a second in the long run, and how many may come at once.
const A_SECOND: f64 = 500.0;
const AT_ONCE: f64 = 1000.0;

/// A bucket that fills steadily and that every request takes one from.
pub(crate) struct Rate(Mutex<(f64, Instant)>);

impl Default for Rate {
    fn default() -> Self {
        Self(Mutex::new((AT_ONCE, Instant::now())))
    }
}

impl Rate {
    fn admits(&self, now: Instant) -> bool {
        let mut bucket = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (left, since) = *bucket;
        let left = (left + A_SECOND * (now - since).as_secs_f64()).min(AT_ONCE);
        let admits = left >= 1.0;
        *bucket = (if admits { left - 1.0 } else { left }, now);
        admits
    }
}

pub(crate) async fn limit(State(rate): State<Arc<Rate>>, request: Request, next: Next) -> Response {
    if rate.admits(Instant::now()) {
        next.run(request).await
    } else {
        Problem::too_often().into_response()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_burst_is_admitted_and_then_a_trickle() {
        let rate = Rate::default();
        let begin = Instant::now();
        let admitted =
            |at: Duration, tried: usize| (0..tried).filter(|_| rate.admits(begin + at)).count();
        assert_eq!(admitted(Duration::ZERO, 1500), 1000);
        assert_eq!(admitted(Duration::from_millis(100), 1500), 50);
        assert_eq!(admitted(Duration::from_mins(1), 1500), 1000);
    }
}
