//! What became of one module, on a page: its times, and each kernel beside the lines that it replaces.

use maud::{Markup, html};
use warpsmith_schema::Verdict;

use crate::html::verdict as verdict_facts;
use crate::page::{Column, Section, code, count, page, runtime, table, times};

/// One module and the solution that is its result.
pub struct Story<'a> {
    pub task: &'a str,
    /// The text of the module.
    pub source: &'a str,
    pub written_by: &'a str,
    /// Of the solution; none where nothing passed.
    pub verdict: Option<&'a Verdict>,
    /// Whether the solution is the result, and not the original.
    pub improved: bool,
    /// Where it is known which kernel stands for which lines.
    pub kernels: Vec<StoryKernel>,
    /// The solution's files, by path.
    pub files: Vec<(String, String)>,
    /// How the result is used, and whether that was tried.
    pub usage: Vec<String>,
}

/// A kernel and what it replaces.
pub struct StoryKernel {
    pub name: String,
    pub what: String,
    /// Operators and their lines in the module.
    pub operators: Vec<(String, Option<u32>)>,
    pub code: String,
}

impl Story<'_> {
    pub fn html(&self) -> String {
        let mut sections = vec![Section {
            title: "Times",
            body: self.times(),
        }];
        if !self.kernels.is_empty() {
            sections.push(Section {
                title: "Kernels and what they replace",
                body: html! { @for kernel in &self.kernels { (self.kernel(kernel)) } },
            });
        }
        sections.push(Section {
            title: "Files",
            body: html! {
                (file("the original", "model.py", self.source))
                @for (path, text) in &self.files { (file(path, path, text)) }
            },
        });
        if let Some(verdict) = self.verdict {
            sections.push(Section {
                title: "Verdict",
                body: verdict_facts(verdict),
            });
        }
        let title = format!("{}: what became of it", self.task);
        page(&title, &self.lead(), &sections).into_string()
    }

    fn lead(&self) -> Markup {
        let found = self
            .verdict
            .and_then(|verdict| verdict.matched_precision.as_ref());
        html! {
            p {
                @match found {
                    Some(matched) if self.improved => {
                        (times(Some(matched.speedup.eager.0))) " as fast as eager PyTorch"
                        @if let Some(compile) = &matched.speedup.compile { ", " (times(Some(compile.0))) " as fast as " code { "torch.compile" } }
                        ". Written by " (self.written_by) "."
                    }
                    Some(_) => { "The best that passed, by " (self.written_by) ", is no faster than the original, which is kept." }
                    None => { "Nothing passed. The original is kept." }
                }
                @if !self.kernels.is_empty() { " " (count(self.kernels.len(), "step")) " a call, each a kernel or a call of a library." }
            }
            @if !self.usage.is_empty() { pre { @for line in &self.usage { (line) "\n" } } }
        }
    }

    fn times(&self) -> Markup {
        let Some(found) = self.verdict.and_then(|verdict| verdict.times_us.as_ref()) else {
            return html! { p { "Nothing was timed." } };
        };
        let columns = ["", "a call", "ours is"].map(|name| Column { name, words: false });
        let own = found.candidate.0;
        let row = |name: &str, us: f64| {
            let name = html! { (name) };
            vec![
                name,
                html! { (runtime(Some(us))) },
                html! { (times(Some(us / own))) },
            ]
        };
        let mut rows = vec![row("eager", found.eager.0)];
        rows.extend(found.compile.as_ref().map(|us| row("torch.compile", us.0)));
        rows.push(row("ours", own));
        table("Median times", &columns, &rows)
    }

    fn kernel(&self, kernel: &StoryKernel) -> Markup {
        let mut lines: Vec<u32> = kernel
            .operators
            .iter()
            .filter_map(|(_, line)| *line)
            .collect();
        lines.sort_unstable();
        lines.dedup();
        let text = |line: &u32| {
            let found = self.source.lines().nth((*line as usize).saturating_sub(1));
            format!("{line:>4}  {}", found.unwrap_or_default().trim())
        };
        let replaced: Vec<String> = lines.iter().map(text).collect();
        let operators: Vec<&str> = kernel.operators.iter().map(|(op, _)| op.as_str()).collect();
        html! {
            h3 { code { (kernel.name) } }
            p.quiet { (kernel.what) }
            div.beside {
                div {
                    p.label {
                        @if operators.is_empty() { "a step of the operator in the next kernel" } @else { (operators.join(", ")) }
                    }
                    @if !replaced.is_empty() { (code("model.py", &replaced.join("\n"))) }
                }
                div {
                    p.label { "kernel" }
                    div.tall { (code(&format!("{}.cu", kernel.name), &kernel.code)) }
                }
            }
        }
    }
}

fn file(title: &str, path: &str, text: &str) -> Markup {
    html! {
        details {
            summary { (title) }
            (code(path, text))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_stands_beside_the_lines_it_replaces() {
        let story = Story {
            task: "gate",
            source: "import torch\ny = torch.tanh(x)\nz = y * 2 # <script>\n",
            written_by: "the compiler",
            verdict: None,
            improved: false,
            kernels: vec![StoryKernel {
                name: "tanh_mul".to_owned(),
                what: "each of (4)".to_owned(),
                operators: vec![("tanh".to_owned(), Some(2)), ("mul".to_owned(), Some(3))],
                code: "__global__ void tanh_mul_kernel() {}".to_owned(),
            }],
            files: Vec::new(),
            usage: vec!["pip install <here>".to_owned()],
        };
        let page = story.html();
        let places = ["tanh, mul", "torch.", "tanh_mul_kernel"].map(|text| page.find(text));
        assert!(
            places.iter().all(Option::is_some) && places.is_sorted(),
            "{page}"
        );
        assert!(
            !page.contains("<script") && !page.contains("<here>"),
            "{page}"
        );
    }
}
