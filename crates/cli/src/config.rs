//! A verb's settings: its defaults, over them a TOML file, over that `--set`, over all of them the flags.
//!
//! A verb declares them once, as a struct of flags that serde reads and writes too: a key of the file is the name of a
//! field. Beside it lies the same with comments, which `--print-config` shows with the values in force. Settings have one
//! level; a field of type `Option` stands in the text as a comment. A verb of several stages has a table for each of them
//! beside its own settings, `[stage]` in the file and `stage.key` for `--set`, with what differs from that stage's defaults.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use warpsmith_schema::FORMAT;

use crate::exit::Exit;
use crate::failure::Stop;
use crate::nearest::nearest;
use crate::printer::Printer;

const CODE: &str = "config";

/// What a verb can be told.
pub(crate) trait Settings: Serialize + DeserializeOwned {
    /// As it is called, such as `train sft`.
    const VERB: &'static str;
    /// The defaults as a TOML file with comments, each key on a line of its own.
    const TEXT: &'static str;
}

/// Where all of its settings can be seen, also by somebody who told them to a stage of another verb.
fn list<S: Settings>() -> String {
    format!("`warpsmith {} --print-config` lists them all", S::VERB)
}

/// Flags of every verb that has settings. To be flattened before all other flags: who comes first sees them all.
#[derive(Debug)]
pub(crate) struct ConfigArgs {
    flags: Flags,
    /// What was said on the command line.
    given: BTreeSet<String>,
}

/// Each with its heading: a heading for all would go on over the verb's own flags.
#[derive(Debug, Args)]
struct Flags {
    /// Read settings from a TOML file
    #[arg(long, value_name = "FILE", help_heading = "Configuration")]
    config: Option<PathBuf>,
    /// One setting by its name in the file; flags win over these and these over the file
    #[arg(long, value_name = "KEY=VALUE", help_heading = "Configuration")]
    set: Vec<String>,
    /// Print the settings in force, as a file with comments, and stop
    #[arg(long, help_heading = "Configuration")]
    print_config: bool,
}

impl FromArgMatches for ConfigArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let said =
            |id: &&clap::Id| matches.value_source(id.as_str()) == Some(ValueSource::CommandLine);
        Ok(Self {
            given: matches
                .ids()
                .filter(said)
                .map(ToString::to_string)
                .collect(),
            flags: Flags::from_arg_matches(matches)?,
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for ConfigArgs {
    fn augment_args(command: Command) -> Command {
        Flags::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Flags::augment_args_for_update(command)
    }
}

/// Settings in force.
#[derive(Debug)]
pub(crate) struct Resolved<S> {
    pub(crate) settings: S,
    /// Those that somebody asked for, wherever.
    pub(crate) said: BTreeSet<String>,
}

/// What a file says of the stages of a verb, by their names.
pub(crate) type Tables = BTreeMap<String, Map<String, Value>>;

impl ConfigArgs {
    /// `flags` as clap read them, defaults included.
    pub(crate) fn resolve<S: Settings>(&self, flags: &S) -> Result<Resolved<S>, Stop> {
        Ok(self.resolve_stages(flags, &[])?.0)
    }

    /// The same, with what is said of stages that have these names.
    pub(crate) fn resolve_stages<S: Settings>(
        &self,
        flags: &S,
        stages: &[&str],
    ) -> Result<(Resolved<S>, Tables), Stop> {
        let flags = object(flags)?;
        let mut layers = Layers {
            values: flags.clone(),
            said: BTreeSet::new(),
        };
        let mut tables = Tables::new();
        if let Some(path) = &self.flags.config {
            let origin = format!("`{}`", path.display());
            for (key, value) in read(path)? {
                match value {
                    Value::Object(table) if stages.contains(&key.as_str()) => {
                        tables.insert(key, table);
                    }
                    value => layers.put::<S>(&key, value, &origin)?,
                }
            }
        }
        for pair in &self.flags.set {
            let (key, value) = parse::<S>(pair)?;
            match key.split_once('.') {
                Some((stage, key)) if stages.contains(&stage) => {
                    let table = tables.entry(stage.to_owned()).or_default();
                    table.insert(key.to_owned(), value);
                }
                _ => layers.put::<S>(key, value, "--set")?,
            }
        }
        for (key, value) in flags {
            if self.given.contains(&key) {
                layers.put::<S>(&key, value, "a flag")?;
            }
        }
        let resolved = Resolved {
            settings: serde_json::from_value(Value::Object(layers.values))?,
            said: layers.said,
        };
        Ok((resolved, tables))
    }

    /// Does what `--print-config` asks for, if it does.
    pub(crate) fn print<S: Settings>(
        &self,
        settings: &S,
        printer: &Printer,
    ) -> Result<Option<Exit>, Stop> {
        if !self.flags.print_config {
            return Ok(None);
        }
        let values = object(settings)?;
        if printer.json() {
            printer.object(&json!({ "format": FORMAT, "settings": values }))?;
        } else {
            printer.data(&filled(S::TEXT, &values))?;
        }
        Ok(Some(Exit::DONE))
    }

    /// The same, with what was said of stages.
    #[cfg(feature = "local-models")]
    pub(crate) fn print_stages<S: Settings>(
        &self,
        settings: &S,
        tables: &Tables,
        printer: &Printer,
    ) -> Result<Option<Exit>, Stop> {
        if !self.flags.print_config {
            return Ok(None);
        }
        let values = object(settings)?;
        if printer.json() {
            printer.object(&json!({ "format": FORMAT, "settings": values, "stages": tables }))?;
        } else {
            printer.data(&(filled(S::TEXT, &values) + &table_text(tables)))?;
        }
        Ok(Some(Exit::DONE))
    }
}

/// A stage's settings: its defaults, over them a table. `origin` is what the table is called in errors.
#[cfg(feature = "local-models")]
pub(crate) fn from_table<S: Settings + Args>(
    table: &Map<String, Value>,
    origin: &str,
) -> Result<S, Stop> {
    let command = S::augment_args(Command::new("stage")).no_binary_name(true);
    let defaults = command
        .try_get_matches_from(Vec::<String>::new())
        .and_then(|matches| S::from_arg_matches(&matches))
        .map_err(|error| Stop::config(CODE, error.to_string(), None))?;
    let mut layers = Layers {
        values: object(&defaults)?,
        said: BTreeSet::new(),
    };
    for (key, value) in table {
        layers.put::<S>(key, value.clone(), origin)?;
    }
    Ok(serde_json::from_value(Value::Object(layers.values))?)
}

/// What was said of stages, as a file has it.
#[cfg(feature = "local-models")]
fn table_text(tables: &Tables) -> String {
    let table = |(name, table): (&String, &Map<String, Value>)| {
        let lines = table
            .iter()
            .map(|(key, value)| format!("{key} = {value}\n"));
        format!("\n[{name}]\n{}", lines.collect::<String>())
    };
    tables.iter().map(table).collect()
}

struct Layers {
    values: Map<String, Value>,
    said: BTreeSet<String>,
}

impl Layers {
    fn put<S: Settings>(&mut self, key: &str, value: Value, origin: &str) -> Result<(), Stop> {
        let Some(place) = self.values.get_mut(key) else {
            return Err(self.unknown::<S>(key, origin));
        };
        *place = value;
        self.said.insert(key.to_owned());
        // One at a time, so that an error is this one's.
        match serde_json::from_value::<S>(Value::Object(self.values.clone())) {
            Ok(_) => Ok(()),
            Err(error) => Err(Stop::config(
                CODE,
                format!("{origin}: `{key}` cannot be this: {error}"),
                Some(list::<S>()),
            )),
        }
    }

    fn unknown<S: Settings>(&self, key: &str, origin: &str) -> Stop {
        let nearest = nearest(key, self.values.keys().map(String::as_str));
        let meant = nearest.map(|nearest| format!("did you mean `{nearest}`? "));
        Stop::config(
            CODE,
            format!("{origin}: there is no setting `{key}`"),
            Some(meant.unwrap_or_default() + &list::<S>()),
        )
    }
}

pub(crate) fn object<S: Serialize>(settings: &S) -> Result<Map<String, Value>, Stop> {
    Ok(serde_json::from_value(serde_json::to_value(settings)?)?)
}

fn read(path: &PathBuf) -> Result<Map<String, Value>, Stop> {
    let text = fs_err::read_to_string(path)
        .map_err(|error| Stop::config(CODE, error.to_string(), None))?;
    toml::from_str(&text).map_err(|error| {
        let before = error.span().and_then(|span| text.get(..span.start));
        let line = before.map(|before| format!(", line {}", before.matches('\n').count() + 1));
        let place = format!("`{}`{}", path.display(), line.unwrap_or_default());
        Stop::config(CODE, format!("{place}: {}", error.message()), None)
    })
}

/// `KEY=VALUE` with a value as the file has it; a text needs no quotes.
fn parse<S: Settings>(pair: &str) -> Result<(&str, Value), Stop> {
    let (key, text) = pair.split_once('=').ok_or_else(|| {
        Stop::config(
            CODE,
            format!("`--set {pair}` gives no value"),
            Some(format!("say `--set KEY=VALUE`; {}", list::<S>())),
        )
    })?;
    let (key, text) = (key.trim(), text.trim());
    let value = toml::from_str(&format!("value = {text}"))
        .ok()
        .filter(|table: &Map<String, Value>| table.len() == 1)
        .and_then(|mut table| table.remove("value"));
    Ok((key, value.unwrap_or_else(|| text.into())))
}

/// The text with these values. What has none stays a comment.
fn filled(text: &str, values: &Map<String, Value>) -> String {
    let line = |line: &str| match key(line).and_then(|key| Some((key, values.get(key)?))) {
        // Numbers, booleans and texts look the same in TOML.
        Some((key, value)) if !value.is_null() => format!("{key} = {value}\n"),
        _ => format!("{line}\n"),
    };
    text.lines().map(line).collect()
}

/// What a line of the text sets, or would if it were no comment.
fn key(line: &str) -> Option<&str> {
    let line = line.strip_prefix("# ").unwrap_or(line);
    let (key, _) = line.split_once(" = ")?;
    let plain = |letter: char| letter.is_ascii_lowercase() || letter == '_';
    key.chars().all(plain).then_some(key)
}

/// What every verb's tests say of its settings: text and struct are the same.
#[cfg(test)]
pub(crate) fn assert_text_says_the_defaults<S: Settings + Args>() {
    let command = S::augment_args(Command::new("verb"))
        .no_binary_name(true)
        .mut_args(|argument| argument.env(clap::builder::Resettable::Reset));
    let matches = command.try_get_matches_from(Vec::<String>::new()).unwrap();
    let defaults = object(&S::from_arg_matches(&matches).unwrap()).unwrap();
    let read: Map<String, Value> = toml::from_str(S::TEXT).unwrap();
    let said = |(_, value): &(&String, &Value)| !value.is_null();
    let expected: Map<String, Value> = (defaults.iter().filter(said))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    assert_eq!(read, expected);
    let mut keys: Vec<&str> = (S::TEXT.lines().filter_map(key))
        .filter(|key| defaults.contains_key(*key))
        .collect();
    keys.sort_unstable();
    let mut all: Vec<&String> = defaults.keys().collect();
    all.sort_unstable();
    assert_eq!(keys, all);
    // What stands there as a comment can be used as it stands.
    let lines = S::TEXT.lines().map(|line| match key(line) {
        Some(key) if defaults.contains_key(key) => line.trim_start_matches("# "),
        _ => "",
    });
    let whole: Value = toml::from_str(&lines.collect::<Vec<_>>().join("\n")).unwrap();
    serde_json::from_value::<S>(whole).map(drop).unwrap();
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
    struct Cooking {
        /// How hot
        #[arg(long, default_value_t = 180)]
        degrees: u32,
        #[arg(long, default_value = "oven")]
        place: String,
        #[arg(long)]
        minutes: Option<f64>,
    }

    impl Settings for Cooking {
        const VERB: &'static str = "cook";
        const TEXT: &'static str =
            "# How hot.\ndegrees = 180\nplace = \"oven\"\n# At most.\n# minutes = 20.0\n";
    }

    #[derive(Debug, Parser)]
    struct Verb {
        #[command(flatten)]
        config: ConfigArgs,
        #[command(flatten)]
        cooking: Cooking,
    }

    fn resolve(arguments: &[&str]) -> Result<Resolved<Cooking>, Stop> {
        let verb = Verb::try_parse_from([&["verb"], arguments].concat()).unwrap();
        verb.config.resolve(&verb.cooking)
    }

    fn failure(arguments: &[&str]) -> (String, String) {
        let failure = resolve(arguments).unwrap_err().0;
        (failure.message, failure.hint.unwrap_or_default())
    }

    #[test]
    fn the_text_of_a_verb_is_checked() {
        assert_text_says_the_defaults::<Cooking>();
    }

    #[test]
    fn flags_win_over_set_over_the_file_over_defaults() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cooking.toml");
        fs_err::write(&path, "degrees = 200\nminutes = 30\n").unwrap();
        let path = path.to_str().unwrap();
        let found = resolve(&["--config", path, "--set", "minutes=45.5"]).unwrap();
        let expected = Cooking {
            degrees: 200,
            place: "oven".to_owned(),
            minutes: Some(45.5),
        };
        assert_eq!(found.settings, expected);
        assert_eq!(found.said, ["degrees", "minutes"].map(str::to_owned).into());
        let more = [
            "--config",
            path,
            "--set",
            "minutes=45.5",
            "--minutes",
            "5",
            "--degrees",
            "180",
        ];
        let found = resolve(&more).unwrap().settings;
        // A flag counts even where it says the default.
        assert_eq!((found.degrees, found.minutes), (180, Some(5.0)));
        let found = resolve(&["--set", "place = on the stove"])
            .unwrap()
            .settings;
        assert_eq!(found.place, "on the stove");
    }

    #[test]
    fn mistakes_are_told_with_their_place() {
        let (message, hint) = failure(&["--set", "degreees=1"]);
        assert_eq!(message, "--set: there is no setting `degreees`");
        assert_eq!(
            hint,
            "did you mean `degrees`? `warpsmith cook --print-config` lists them all"
        );
        let (message, _) = failure(&["--set", "degrees=hot"]);
        assert_eq!(
            message,
            "--set: `degrees` cannot be this: invalid type: string \"hot\", expected u32"
        );
        assert_eq!(
            failure(&["--set", "degrees"]).0,
            "`--set degrees` gives no value"
        );
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("broken.toml");
        fs_err::write(&path, "degrees = 1\nplace = oven\n").unwrap();
        let (message, _) = failure(&["--config", path.to_str().unwrap()]);
        assert!(message.contains("broken.toml`, line 2: "), "{message}");
        let (message, _) = failure(&["--config", "/nowhere/x.toml"]);
        assert!(message.contains("/nowhere/x.toml"), "{message}");
    }

    #[cfg(feature = "local-models")]
    #[test]
    fn stages_have_tables_of_their_own() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("meal.toml");
        fs_err::write(&path, "degrees = 200\n[dessert]\nminutes = 3\n").unwrap();
        let arguments = ["verb", "--config", path.to_str().unwrap()];
        let set = ["--set", "dessert.place=bowl"];
        let verb = Verb::try_parse_from([&arguments[..], &set].concat()).unwrap();
        let (resolved, tables) = verb
            .config
            .resolve_stages(&verb.cooking, &["dessert"])
            .unwrap();
        assert_eq!(resolved.settings.degrees, 200);
        let dessert: Cooking = from_table(&tables["dessert"], "[dessert]").unwrap();
        let expected = Cooking {
            degrees: 180,
            place: "bowl".to_owned(),
            minutes: Some(3.0),
        };
        assert_eq!(dessert, expected);
        // Without stages a table is no setting.
        assert!(verb.config.resolve(&verb.cooking).is_err());
        let unknown = serde_json::from_value(json!({ "minute": 3 })).unwrap();
        let failure = from_table::<Cooking>(&unknown, "[dessert]").unwrap_err().0;
        assert_eq!(failure.message, "[dessert]: there is no setting `minute`");
        assert!(failure.hint.unwrap().contains("`minutes`"));
    }

    #[test]
    fn what_is_printed_can_be_read_again() {
        let values = object(&Cooking {
            degrees: 99,
            place: "a \"pan\"".to_owned(),
            minutes: Some(0.5),
        })
        .unwrap();
        let text = filled(Cooking::TEXT, &values);
        assert!(text.starts_with("# How hot.\ndegrees = 99\n"), "{text}");
        let read: Map<String, Value> = toml::from_str(&text).unwrap();
        assert_eq!(read, values);
    }
}
