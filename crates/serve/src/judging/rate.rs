//! How often anything may be asked by one client.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::sync::Arc;
use tokio::time::sleep;

use crate::client::Client;
use crate::problem::Problem;

/// Requests a second in the long run, and how many may come at once: more than a training run has in flight.
const A_SECOND: f64 = 1000.0;
const AT_ONCE: f64 = 4000.0;
/// How often one who is made to wait is looked at again.
const PAUSE: Duration = Duration::from_millis(100);

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

    async fn turn(&self, client: &Client) {
        while !self.admits(client, Instant::now()) {
            sleep(PAUSE).await;
        }
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

/// For clients that would not come again: they are kept until it is their turn.
pub(crate) async fn pace(
    State(rate): State<Arc<Rate>>,
    client: Client,
    request: Request,
    next: Next,
) -> Response {
    rate.turn(&client).await;
    next.run(request).await
}

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;

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

    #[tokio::test]
    async fn who_would_not_come_again_waits() {
        let rate = Rate::default();
        let one = Client::named("one");
        let begin = Instant::now();
        while rate.admits(&one, Instant::now()) {}
        join_all((0..500).map(|_| rate.turn(&one))).await;
        assert!(begin.elapsed() >= Duration::from_millis(400));
    }
}
