//! `docs/reference/cli.md`, made from what clap knows. The test fails where the page is not what clap says;
//! `WARPSMITH_UPDATE_DOCS=1 cargo test --release -p warpsmith --bins cli_reference` writes it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use clap::{Arg, ArgAction, Command, CommandFactory};

use crate::cli::Cli;

const INTRODUCTION: &str = "\
# Command line

`warpsmith VERB [OPTIONS]` prints results on stdout; notes, progress bars, hints and errors go to stderr. With `--json` stdout
is exactly one JSON object (`mcp` speaks its own protocol there). See also [exit codes](exit-codes.md) and what
[TASK, SOLUTION and POLICY](arguments.md) can be.

A verb's section has the arguments that it alone takes; brackets hold the default. Arguments of several verbs stand once: under
[shared flags](#shared-flags), or under [`train`](#train). `first … last` are all verbs from one to the other, in the order of
this page. The page is generated from the program's own help texts; `warpsmith VERB --help` says more of some flags.
";

/// A flag is shared where at least this many verbs have it with the same text.
const SHARED_BY: usize = 2;

/// Name of the flag and its help.
type Entry = (String, String);

#[test]
fn the_page_is_what_clap_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/cli.md");
    let mut root = Cli::command();
    root.build();
    let page = page(&root);
    if std::env::var_os("WARPSMITH_UPDATE_DOCS").is_some() {
        fs_err::write(&path, &page).unwrap();
    }
    let written = fs_err::read_to_string(&path).unwrap();
    assert!(
        written == page,
        "docs/reference/cli.md is not what clap says; WARPSMITH_UPDATE_DOCS=1 writes it anew"
    );
}

fn page(root: &Command) -> String {
    let verbs = verbs(root, "");
    let shared = shared(&verbs);
    let mut page = INTRODUCTION.to_owned();
    let all: Vec<String> = verbs.iter().map(|(name, _)| name.clone()).collect();
    page += "\n## Shared flags\n";
    page += &groups(&shared, None, &all);
    for (name, verb) in &verbs {
        let level = if name.contains(' ') { "###" } else { "##" };
        let about = verb.get_long_about().or_else(|| verb.get_about());
        let about = about.map(ToString::to_string).unwrap_or_default();
        let usage = (*verb).clone().render_usage().to_string();
        let usage = usage
            .trim_start_matches("Usage: ")
            .replace(" [OPTIONS]", "");
        let _ = write!(page, "\n{level} {name}\n\n");
        if usage.split(' ').count() > name.split(' ').count() + 1 {
            let _ = write!(page, "`{usage}`\n\n");
        }
        let _ = writeln!(page, "{}", about.trim());
        let own: Vec<Entry> = entries(verb)
            .filter(|entry| !shared.contains_key(entry))
            .collect();
        page += &list(&own);
        page += &groups(&shared, Some(name), &all);
        if let Some(after) = verb.get_after_long_help() {
            let _ = write!(page, "\n```text\n{}\n```\n", after.to_string().trim());
        }
    }
    page
}

fn list(entries: &[Entry]) -> String {
    let lines = entries.iter().map(|(flag, help)| match help.as_str() {
        "" => format!("- {flag}\n"),
        help => format!("- {flag}: {help}\n"),
    });
    let lines: String = lines.collect();
    if lines.is_empty() {
        lines
    } else {
        format!("\n{lines}")
    }
}

/// A list of flags for each set of verbs that share them: the verbs below `above`, or all other sets.
fn groups(shared: &BTreeMap<Entry, Vec<String>>, above: Option<&str>, all: &[String]) -> String {
    let mut groups: BTreeMap<&[String], Vec<Entry>> = BTreeMap::new();
    for (entry, names) in shared {
        let first = names.first().and_then(|name| parent(name));
        let common = first.filter(|_| names.iter().all(|name| parent(name) == first));
        if common == above {
            groups.entry(names).or_default().push(entry.clone());
        }
    }
    let mut groups: Vec<(&[String], Vec<Entry>)> = groups.into_iter().collect();
    let place = |names: &[String]| all.iter().position(|one| names.first() == Some(one));
    groups.sort_by_key(|(names, _)| (std::cmp::Reverse(names.len()), place(names)));
    let mut text = String::new();
    for (names, entries) in groups {
        let verbs = if names.len() == all.len() {
            "All verbs".to_owned()
        } else {
            let verbs = listed(names, all);
            let verb = above.map(|verb| format!("`{verb}` "));
            match verb.and_then(|verb| verbs.strip_prefix(&verb)) {
                Some(below) => below.to_owned(),
                None => verbs,
            }
        };
        let _ = write!(text, "\n**{verbs}**\n{}", list(&entries));
    }
    text
}

/// So many verbs in a row are named by the first and the last.
const RUN: usize = 4;

/// In the order of the page. Verbs below another are listed behind its name: `judge`, `train` sft, rft.
fn listed(names: &[String], all: &[String]) -> String {
    let place = |name: &String| {
        let above = parent(name);
        let siblings = all.iter().filter(|one| parent(one) == above);
        siblings.take_while(|one| *one != name).count()
    };
    let mut parts: Vec<String> = Vec::new();
    let mut above = None;
    let runs =
        names.chunk_by(|one, next| parent(one) == parent(next) && place(one) + 1 == place(next));
    for run in runs {
        let mut shown: Vec<String> = run.iter().map(|name| own_name(name)).collect();
        if let [first, .., last] = shown.as_slice()
            && shown.len() >= RUN
        {
            shown = vec![format!("{first} … {last}")];
        }
        let verb = run.first().and_then(|name| parent(name));
        if let Some(verb) = verb
            && above != Some(verb)
            && let Some(first) = shown.first_mut()
        {
            *first = format!("`{verb}` {first}");
        }
        above = verb;
        parts.append(&mut shown);
    }
    parts.join(", ")
}

fn parent(name: &str) -> Option<&str> {
    name.split_once(' ').map(|(verb, _)| verb)
}

fn own_name(name: &str) -> String {
    match name.split_once(' ') {
        Some((_, below)) => below.to_owned(),
        None => format!("`{name}`"),
    }
}

/// Every verb that can be run, with those below it after it.
fn verbs<'a>(command: &'a Command, prefix: &str) -> Vec<(String, &'a Command)> {
    let below = command.get_subcommands();
    below
        .filter(|verb| verb.get_name() != "help" && !verb.is_hide_set())
        .flat_map(|verb| {
            let name = format!("{prefix}{}", verb.get_name());
            let rest = verbs(verb, &format!("{name} "));
            std::iter::once((name, verb)).chain(rest)
        })
        .collect()
}

fn shared(verbs: &[(String, &Command)]) -> BTreeMap<Entry, Vec<String>> {
    let mut users: BTreeMap<Entry, Vec<String>> = BTreeMap::new();
    for (name, verb) in verbs {
        for entry in entries(verb) {
            users.entry(entry).or_default().push(name.clone());
        }
    }
    users.retain(|_, names| names.len() >= SHARED_BY);
    users
}

fn entries(verb: &Command) -> impl Iterator<Item = Entry> + '_ {
    verb.get_arguments()
        .filter(|argument| !argument.is_hide_set() && argument.get_id() != "help")
        .map(|argument| (name(argument), meaning(argument)))
}

/// As it is typed, with its default: `-q, --quiet`, `--device N` [`0`], `TASK`.
fn name(argument: &Arg) -> String {
    let value = argument
        .get_action()
        .takes_values()
        .then(|| match choices(argument) {
            Some(choices) => choices.join("|"),
            None => argument.get_value_names().unwrap_or_default().join(" "),
        });
    let flags = [
        argument.get_short().map(|short| format!("-{short}")),
        argument.get_long().map(|long| format!("--{long}")),
    ];
    let flags: Vec<String> = flags.into_iter().flatten().collect();
    let name = match (flags.is_empty(), value) {
        (true, value) => value.unwrap_or_default(),
        (false, Some(value)) => format!("{} {value}", flags.join(", ")),
        (false, None) => flags.join(", "),
    };
    match default(argument) {
        Some(default) => format!("`{name}` [{default}]"),
        None => format!("`{name}`"),
    }
}

fn default(argument: &Arg) -> Option<String> {
    let values: Vec<String> = argument
        .get_default_values()
        .iter()
        .map(|value| value.to_string_lossy().into_owned())
        .collect();
    if !argument.get_action().takes_values() || values.is_empty() {
        None
    } else if values.len() > 1 && values == value_names(argument) {
        Some("all".to_owned())
    } else {
        Some(quoted(&values))
    }
}

/// The values of a flag that takes one of a few.
fn choices(argument: &Arg) -> Option<Vec<String>> {
    let one = matches!(argument.get_action(), ArgAction::Set) && argument.get_long().is_some();
    let names = value_names(argument);
    (one && !names.is_empty()).then_some(names)
}

fn value_names(argument: &Arg) -> Vec<String> {
    let values = argument.get_possible_values();
    let shown = values.iter().filter(|value| !value.is_hide_set());
    shown.map(|value| value.get_name().to_owned()).collect()
}

fn meaning(argument: &Arg) -> String {
    let help = argument.get_help().map(ToString::to_string);
    let help = help.unwrap_or_default();
    let mut text = help.split_whitespace().collect::<Vec<_>>().join(" ");
    // What follows is joined by a semicolon.
    if text.ends_with('.') {
        text.pop();
    }
    let values = value_names(argument);
    if argument.get_action().takes_values() && choices(argument).is_none() && !values.is_empty() {
        let _ = write!(text, "; of {}", quoted(&values));
    }
    if let Some(variable) = argument.get_env() {
        let _ = write!(text, "; also `{}`", variable.to_string_lossy());
    }
    // Where there is no help, what follows begins.
    text.trim_start_matches("; ").to_owned()
}

fn quoted(names: &[String]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    quoted.join(", ")
}
