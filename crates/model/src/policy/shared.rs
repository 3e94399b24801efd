//! One policy for many episodes at once.

use warpsmith_schema::{EpisodeId, PolicyVersion};

use super::{OpenAiPolicy, Policy, ScriptPolicy};

/// A policy that many can ask side by side.
pub trait SharedPolicy: Send + Sync {
    fn version(&self) -> &PolicyVersion;

    /// For one episode alone. An earlier process may have had replies for it: a policy that gives them in an order goes on
    /// after these.
    fn for_episode(&self, episode: &EpisodeId, replies: usize) -> Box<dyn Policy>;

    /// Whether it writes on the device that judges time on, and rests meanwhile.
    fn rests(&self) -> bool {
        false
    }
}

/// Requests go side by side, over connections that are kept.
impl SharedPolicy for OpenAiPolicy {
    fn version(&self) -> &PolicyVersion {
        Policy::version(self)
    }

    fn for_episode(&self, _: &EpisodeId, _: usize) -> Box<dyn Policy> {
        Box::new(self.clone())
    }
}

/// Every episode hears its own lines from the first on, whatever the others do.
impl SharedPolicy for ScriptPolicy {
    fn version(&self) -> &PolicyVersion {
        Policy::version(self)
    }

    fn for_episode(&self, episode: &EpisodeId, replies: usize) -> Box<dyn Policy> {
        Box::new(self.lines_for(episode).after(replies))
    }
}
