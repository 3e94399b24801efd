//! Jobs that wait: clients take turns, and of one client the first that came is the first to go.

use std::collections::{HashMap, VecDeque};

use crate::client::Client;

/// The most jobs of one client that wait. Each client has so many places, so that none takes another's.
const MAX_WAITING: usize = 4096;
/// The most that these may hold in memory, since one request may be megabytes.
const MAX_BYTES: usize = 512 << 20;

#[derive(Default)]
pub(super) struct FairQueue {
    /// Clients with waiting jobs, the next to be served first.
    turns: VecDeque<Client>,
    lines: HashMap<Client, Line>,
}

#[derive(Default)]
struct Line {
    /// Ids and what their work takes.
    jobs: VecDeque<(String, usize)>,
    bytes: usize,
}

impl FairQueue {
    pub(super) fn has_place(&self, client: &Client, bytes: usize) -> bool {
        self.lines.get(client).is_none_or(|line| {
            line.jobs.len() < MAX_WAITING && line.bytes.saturating_add(bytes) <= MAX_BYTES
        })
    }

    pub(super) fn push(&mut self, client: &Client, id: String, bytes: usize) {
        let line = self.lines.entry(client.clone()).or_default();
        if line.jobs.is_empty() {
            self.turns.push_back(client.clone());
        }
        line.bytes += bytes;
        line.jobs.push_back((id, bytes));
    }

    /// The first job of the client whose turn it is, who then is the last to have another.
    pub(super) fn pop(&mut self) -> Option<String> {
        let client = self.turns.pop_front()?;
        let line = self.lines.get_mut(&client)?;
        let (id, bytes) = line.jobs.pop_front()?;
        line.bytes -= bytes;
        if line.jobs.is_empty() {
            self.lines.remove(&client);
        } else {
            self.turns.push_back(client);
        }
        Some(id)
    }

    pub(super) fn remove(&mut self, client: &Client, id: &str) {
        let Some(line) = self.lines.get_mut(client) else {
            return;
        };
        let place = line.jobs.iter().position(|(waiting, _)| waiting == id);
        if let Some((_, bytes)) = place.and_then(|place| line.jobs.remove(place)) {
            line.bytes -= bytes;
        }
        if line.jobs.is_empty() {
            self.lines.remove(client);
            self.turns.retain(|waiting| waiting != client);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.lines.values().map(|line| line.jobs.len()).sum()
    }

    /// How many of each client wait.
    pub(super) fn by_client(&self) -> Vec<(Client, usize)> {
        let lines = self.lines.iter();
        let mut all: Vec<_> = lines
            .map(|(client, line)| (client.clone(), line.jobs.len()))
            .collect();
        all.sort();
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drained(queue: &mut FairQueue) -> Vec<String> {
        std::iter::from_fn(|| queue.pop()).collect()
    }

    #[test]
    fn clients_take_turns_however_many_jobs_one_has() {
        let (many, few) = (Client::named("many"), Client::named("few"));
        let mut queue = FairQueue::default();
        for id in ["m1", "m2", "m3", "m4"] {
            queue.push(&many, id.to_owned(), 1);
        }
        queue.push(&few, "f1".to_owned(), 1);
        queue.push(&few, "f2".to_owned(), 1);
        assert_eq!(queue.by_client(), [(few.clone(), 2), (many.clone(), 4)]);
        assert_eq!(queue.pop().unwrap(), "m1");
        // Who comes back after its line was empty has its turn last.
        queue.push(&Client::named("late"), "l1".to_owned(), 1);
        assert_eq!(drained(&mut queue), ["f1", "m2", "l1", "f2", "m3", "m4"]);
        assert_eq!(queue.len(), 0);
    }

    #[test]
    fn what_is_taken_back_is_not_served() {
        let (one, other) = (Client::named("one"), Client::named("other"));
        let mut queue = FairQueue::default();
        queue.push(&one, "a".to_owned(), 1);
        queue.push(&other, "b".to_owned(), 1);
        queue.push(&other, "c".to_owned(), 1);
        queue.remove(&one, "a");
        queue.remove(&other, "b");
        queue.remove(&other, "none");
        assert_eq!(drained(&mut queue), ["c"]);
    }

    #[test]
    fn places_are_bounded_for_each_client_in_number_and_in_size() {
        let (one, other) = (Client::named("one"), Client::named("other"));
        let mut queue = FairQueue::default();
        for number in 0..MAX_WAITING {
            assert!(queue.has_place(&one, 1));
            queue.push(&one, number.to_string(), 1);
        }
        assert!(!queue.has_place(&one, 1));
        assert!(queue.has_place(&other, 1));
        queue.push(&other, "large".to_owned(), MAX_BYTES - 1);
        assert!(queue.has_place(&other, 1) && !queue.has_place(&other, 2));
        queue.remove(&other, "large");
        assert!(queue.has_place(&other, 2));
    }
}
