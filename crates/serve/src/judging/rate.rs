//! How often anything may be asked by one client.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::sync::Arc;

use crate::client::Client;
use crate::problem::Problem;

/// Requests a second in the long run, and how many may come at once: more than a training run has in flight.
const A_SECOND: f64 = 1000.0;
const AT_ONCE: f64 = 4000.0;

/// For each client a bucket that fills steadily and that every request takes one from. There are as many clients as keys.
#[derive(Default)]
pub(crate) struct Rate(Mutex<HashMap<Client, (f64, Instant)>>);

impl Rate {
    fn admits(&self, client: &Client, now: Instant) -> bool {
        let mut buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let bucket = buckets.entry(client.clone()).or_insert((AT_ONCE, now));
        let (left, since) = *bucket;
        let left = (left + A_SECOND * (now - since).as_secs_f64()).min(AT_ONCE);
        let admits = left >= 1.0;
        *bucket = (if admits { left - 1.0 } else { left }, now);
        admits
    }
}

pub(crate) async fn limit(
    State(rate): State<Arc<Rate>>,
    client: Client,
    request: Request,
    next: Next,
) -> Response {
    if rate.admits(&client, Instant::now()) {
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
        let one = Client::named("one");
        let admitted = |at: Duration, tried: usize| {
            let all = (0..tried).filter(|_| rate.admits(&one, begin + at));
            all.count()
        };
        assert_eq!(admitted(Duration::ZERO, 5000), 4000);
        assert_eq!(admitted(Duration::from_millis(100), 1500), 100);
        // Another has a bucket of its own.
        assert!(rate.admits(&Client::named("other"), begin));
        assert_eq!(admitted(Duration::from_mins(1), 5000), 4000);
    }
}
