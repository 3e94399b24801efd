//! Authors, endings and reasons in words, for those who wait and for the table at the end.

use warpsmith_rollout::optimize::{Author, NoSolution};
use warpsmith_schema::{EpisodeEnding, StartAuthor};
use warpsmith_tasks::CaptureError;

pub(super) fn describe_author(author: Author) -> String {
    match author {
        Author::Start(StartAuthor::Compiler) => "the compiler".to_owned(),
        Author::Start(StartAuthor::User) => "you, the solution to start from".to_owned(),
        Author::Policy { sample } => format!("the policy, in sample {sample}"),
    }
}

/// Why the compiler has no solution, with the line where that is known.
pub(super) fn why(reason: &NoSolution) -> String {
    match reason {
        NoSolution::Graph(CaptureError::NotCaptured(captured)) => {
            let line = captured.line.map(|line| format!("line {line}: "));
            format!("{}{captured}", line.unwrap_or_default())
        }
        other => other.to_string(),
    }
}

/// Why an episode without a passed attempt is over.
pub(super) fn describe_ending(ending: &EpisodeEnding) -> String {
    match ending {
        EpisodeEnding::Finished => "all repairs were used".to_owned(),
        EpisodeEnding::Limit { which } => format!("a limit was reached: {which:?}").to_lowercase(),
        EpisodeEnding::ContextFull => "the policy's context was full".to_owned(),
        EpisodeEnding::NothingUsable => "no reply held files to judge".to_owned(),
        EpisodeEnding::Looping => "the policy said the same again".to_owned(),
        EpisodeEnding::NotCovered { message } => {
            format!("the policy does not cover this task: {message}")
        }
        EpisodeEnding::PolicyFailed { message } => message.clone(),
        EpisodeEnding::Interrupted => "interrupted".to_owned(),
    }
}
