//! Whether training works, in a sentence for each number that tells it: from where to where, and whether that is more than
//! chance.

use std::fmt::Write;

use crate::TrainingStep;
use crate::page::percent;

/// What became of one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Course {
    Better,
    Worse,
    /// What there is could be chance.
    NotTold,
}

/// A number, and a sentence on its course.
#[derive(Debug, Clone, PartialEq)]
pub struct Learning {
    pub course: Course,
    pub words: String,
}

struct Telling {
    name: &'static str,
    words: &'static str,
    more_is_better: bool,
    /// Of a share: what says of how many.
    of: Option<&'static str>,
}

const fn telling(
    name: &'static str,
    words: &'static str,
    more_is_better: bool,
    of: Option<&'static str>,
) -> Telling {
    Telling {
        name,
        words,
        more_is_better,
        of,
    }
}

/// On what is held out, and on what is trained: of each the first that there is.
const TELLING: [&[Telling]; 2] = [
    &[
        telling(
            "validation_pass_rate",
            "on held-out tasks, the share that passed",
            true,
            Some("validation_episodes"),
        ),
        telling("validation_loss", "the loss on held-out data", false, None),
        telling(
            "explained_variance",
            "the share of the variance that the value model explains",
            true,
            None,
        ),
    ],
    &[
        telling(
            "pass_rate",
            "in training, the share that passed",
            true,
            Some("episodes"),
        ),
        telling("reward", "in training, the reward", true, None),
        telling("loss", "the loss in training", false, None),
    ],
];
/// The two-sided 95 % of a normal distribution.
const Z: f64 = 1.96;

/// None before the second step.
pub fn learning(steps: &[TrainingStep]) -> Vec<Learning> {
    let of = |all: &&[Telling]| all.iter().find_map(|one| one.course(steps));
    TELLING.iter().filter_map(of).collect()
}

/// A part of the steps: its mean, from how many, and the step in its middle.
struct Part {
    mean: f64,
    count: f64,
    step: u64,
}

impl Telling {
    fn course(&self, steps: &[TrainingStep]) -> Option<Learning> {
        let points: Vec<(u64, f64, f64)> = steps
            .iter()
            .filter_map(|step| {
                let count = self.of.and_then(|of| step.values.get(of)).copied();
                Some((
                    step.step,
                    *step.values.get(self.name)?,
                    count.unwrap_or(1.0),
                ))
            })
            .collect();
        if points.len() < 2 {
            return None;
        }
        let quarter = points.len().div_ceil(4);
        let early = part(&points[..quarter]);
        let late = part(&points[points.len() - quarter..]);
        let change = late.mean - early.mean;
        let noise = if self.of.is_some() {
            let share =
                (early.mean * early.count + late.mean * late.count) / (early.count + late.count);
            (share * (1.0 - share) * (1.0 / early.count + 1.0 / late.count)).sqrt()
        } else {
            // What a straight line through its neighbours does not explain is noise, whatever the course.
            let bend = |three: &[(u64, f64, f64)]| three[0].1 - 2.0 * three[1].1 + three[2].1;
            let bends = points.windows(3).map(|three| bend(three).powi(2));
            let each = bends.sum::<f64>() / (points.len() as f64 - 2.0).max(1.0) / 6.0;
            (each * 2.0 / quarter as f64).sqrt()
        };
        // Of two points nobody knows what is noise between them.
        let told = if self.of.is_none() && points.len() < 4 {
            change != 0.0
        } else {
            change.abs() > Z * noise
        };
        let course = match (told, (change > 0.0) == self.more_is_better) {
            (false, _) => Course::NotTold,
            (true, true) => Course::Better,
            (true, false) => Course::Worse,
        };
        Some(Learning {
            course,
            words: self.sentence(course, &early, &late, &points),
        })
    }

    fn sentence(
        &self,
        course: Course,
        early: &Part,
        late: &Part,
        points: &[(u64, f64, f64)],
    ) -> String {
        let number = |value: f64| match self.of {
            Some(_) => percent(Some(value)),
            None => format!("{value:.3}"),
        };
        let (from, to) = (number(early.mean), number(late.mean));
        let (first, last) = (early.step, late.step);
        let course = match (course, late.mean > early.mean) {
            (Course::NotTold, _) => {
                let of = match self.of {
                    Some(_) => format!(" of {:.0} replies", early.count + late.count),
                    None => String::new(),
                };
                return format!(
                    "{}: {from} at step {first}, {to} at step {last}{of}: no more than chance could do",
                    self.words
                );
            }
            (_, true) => "rose",
            (_, false) => "fell",
        };
        let mut words = format!(
            "{} {course} from {from} at step {first} to {to} at step {last}",
            self.words
        );
        let least = points.iter().min_by(|one, other| one.1.total_cmp(&other.1));
        if let (Some((step, least, _)), "validation_loss", Some(end)) =
            (least, self.name, points.last())
            && end.1 > 1.05 * least
        {
            // Writing to a text does not fail.
            let _ = write!(
                words,
                ", and was lowest at step {step} ({least:.3}): later steps overfit"
            );
        }
        words
    }
}

fn part(points: &[(u64, f64, f64)]) -> Part {
    let count: f64 = points.iter().map(|point| point.2).sum();
    let sum: f64 = points.iter().map(|point| point.1 * point.2).sum();
    Part {
        mean: sum / count.max(1e-9),
        count,
        step: points[points.len() / 2].0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(name: &str, values: &[f64], episodes: Option<(&str, f64)>) -> Vec<TrainingStep> {
        let step = |(number, value): (usize, &f64)| TrainingStep {
            step: number as u64,
            steps: None,
            at: None,
            values: std::iter::once((name.to_owned(), *value))
                .chain(episodes.map(|(of, count)| (of.to_owned(), count)))
                .collect(),
        };
        values.iter().enumerate().map(step).collect()
    }

    fn found(name: &str, values: &[f64], episodes: Option<(&str, f64)>) -> Learning {
        learning(&steps(name, values, episodes)).remove(0)
    }

    #[test]
    fn a_course_is_told_from_chance() {
        let falls = found("loss", &[3.0, 2.5, 2.1, 1.8, 1.5, 1.3, 1.2, 1.1], None);
        assert_eq!(falls.course, Course::Better);
        assert_eq!(
            falls.words,
            "the loss in training fell from 2.750 at step 1 to 1.150 at step 7"
        );
        let noise = found("loss", &[2.0, 3.0, 2.2, 2.9, 2.1, 3.1, 2.0, 2.8], None);
        assert_eq!(noise.course, Course::NotTold, "{}", noise.words);
        let rises = found("loss", &[1.0, 1.2, 1.5, 1.9, 2.4, 3.0, 3.5, 4.2], None);
        assert_eq!(rises.course, Course::Worse);
        // 1 of 4 and 2 of 4 is chance; 100 of 400 and 200 of 400 is not.
        for (episodes, course) in [(4.0, Course::NotTold), (400.0, Course::Better)] {
            let rate = found("pass_rate", &[0.25, 0.5], Some(("episodes", episodes)));
            assert_eq!(rate.course, course, "{}", rate.words);
        }
        assert_eq!(learning(&steps("loss", &[1.0], None)), []);
    }

    #[test]
    fn overfitting_is_named() {
        let found = found("validation_loss", &[3.0, 1.0, 0.5, 0.8, 1.0, 1.1], None);
        assert!(
            found
                .words
                .contains("lowest at step 2 (0.500): later steps overfit"),
            "{}",
            found.words
        );
    }
}
