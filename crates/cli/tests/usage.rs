//! What needs no torch: help, schemas, completions, caches and the doctor.

use crate::common::{Context, code, json};
use crate::snapshot;

fn shown(arguments: &[&str]) -> String {
    let context = Context::new();
    context.shown(&context.bare(arguments).output().unwrap())
}

#[test]
fn help_names_every_verb() {
    snapshot!(shown(&["--help"]), @"
    exit_code: 0
    ----- stdout -----
    Write fast GPU kernels with an agent, and judge them trusting none

    Usage: warpsmith [OPTIONS] <COMMAND>

    Commands:
      doctor       Say what this machine offers, what is missing and what to do about it
      setup        Fetch and build everything that would otherwise be made on first use
      new          Make a task folder to start from
      judge        Compile, verify and time one solution; no argument: an embedded example
      profile      Say where the time goes, by operator and kernel, against the machine's roofline
      graph        Show what a module computes, operator by operator
      explain      Say what the compiler would do with a module
      replay       Judge again from an evidence bundle and compare the verdicts
      optimize     Write a faster module; no argument: an embedded example
      evolve       Search for the fastest kernel of a module
      synth        Compose tasks that no benchmark contains
      rollout      Run a policy on many tasks, several episodes each
      bench        Run a policy over `KernelBench`
      train        Train a local model on trajectories: SFT, RFT, value pretraining, PPO, GRPO
      report       Print the numbers of runs, side by side, and write them as one HTML file
      export       Write the episodes of runs, or tasks, in the form of other tools
      serve        Serve a dashboard of runs, the judge, and a language model if one is named
      mcp          Give the judge's tools to another agent, over MCP on stdin and stdout
      exploits     Judge every attack and every honest control of a suite, and print the catch rate
      models       List, fetch and find the language models that can be had by name
      cache        See and delete what is kept between runs
      schema       Print the JSON Schema of a document
      completions  Print a completion script for a shell
      help         Print this message or the help of the given subcommand(s)

    Options:
      -h, --help     Print help
      -V, --version  Print version

    Output:
          --json        Print exactly one JSON object on stdout
      -q, --quiet       Print only errors to stderr
      -v, --verbose...  Show every protection, check and version, and logs; `-vv` for more
    ----- stderr -----
    ");
}

#[test]
fn help_of_judge_lists_its_flags() {
    snapshot!(shown(&["judge", "-h"]), @"
    exit_code: 0
    ----- stdout -----
    Compile, verify and time one solution; no argument: an embedded example

    Usage: warpsmith judge [OPTIONS] [TASK] [SOLUTION]

    Arguments:
      [TASK]      A `KernelBench` module, `FILE.jsonl#level1/19`, or an example's name
      [SOLUTION]  A folder with `model_new.py` and `kernels/`, or one file; else TASK's folder

    Options:
          --example <NAME>         Judge an embedded example
          --list-examples          List the embedded examples
          --min-speedup <X>        Exit 1 below this speed-up
          --max-autotune           Compare with `torch.compile` in mode `max-autotune`
          --out <DIR>              Where the evidence goes; must not exist yet
          --kill-rate              First try wrong variants of the task itself: `trust.kill_rate` says
                                   what share of them is refused
          --repeat <N>             Judge N times, to see the spread [default: 1]
          --profile <PROFILE>      How thoroughly to judge [default: full] [possible values: full, rl,
                                   verify]
          --rules <RULES>          `own`: kernels compute all of `forward`; `mixed`: PyTorch may compute
                                   the rest [default: own] [possible values: own, mixed]
          --no-compile             Do not measure `torch.compile`
          --isolation <ISOLATION>  What to do where a required protection cannot be had [default:
                                   strict] [possible values: strict, weak]
      -h, --help                   Print help (see more with '--help')

    Machine:
          --target <TARGET>  Where kernels run; `auto` is cuda if a GPU, nvcc and a CUDA torch are there
                             [default: auto] [possible values: auto, cuda, cpu]
          --device <N>       Which GPU [default: 0]
          --python <PATH>    The Python with torch to use, instead of one on the PATH or our own [env:
                             WARPSMITH_PYTHON]
          --offline          Fetch nothing from the network

    Output:
          --json        Print exactly one JSON object on stdout
      -q, --quiet       Print only errors to stderr
      -v, --verbose...  Show every protection, check and version, and logs; `-vv` for more
    ----- stderr -----
    ");
}

#[test]
fn help_of_replay_says_when_times_agree() {
    snapshot!(shown(&["replay", "--help"]), @"
    exit_code: 0
    ----- stdout -----
    Judge again from an evidence bundle and compare the verdicts

    Exit code 0 if the status is the same and, on the same hardware, the times agree: they differ by no
    more than three times both spreads together, or by 10 % where that is more. 1 if not. 2 if the
    evidence was changed.

    Usage: warpsmith replay [OPTIONS] <EVIDENCE>

    Arguments:
      <EVIDENCE>
              The folder that a verdict names under `evidence`

    Options:
          --isolation <ISOLATION>
              What to do where a required protection cannot be had

              Possible values:
              - strict: Refuse to run where a required protection is missing
              - weak:   Run anyway; the verdict says `trust.contained = false`

              [default: strict]

      -h, --help
              Print help (see a summary with '-h')

    Machine:
          --device <N>
              Which GPU

              [default: 0]

          --python <PATH>
              The Python with torch to use, instead of one on the PATH or our own

              [env: WARPSMITH_PYTHON]

          --offline
              Fetch nothing from the network

    Output:
          --json
              Print exactly one JSON object on stdout

      -q, --quiet
              Print only errors to stderr

      -v, --verbose...
              Show every protection, check and version, and logs; `-vv` for more
    ----- stderr -----
    ");
}

#[test]
fn nothing_at_all_is_wrong_usage() {
    let context = Context::new();
    let output = context.bare(&[]).output().unwrap();
    assert_eq!(code(&output), 2);
    assert!(output.stdout.is_empty());
}

#[test]
fn an_unknown_verb_is_wrong_usage() {
    snapshot!(shown(&["optimise"]), @"
    exit_code: 2
    ----- stdout -----
    ----- stderr -----
    error: unrecognized subcommand 'optimise'

      tip: a similar subcommand exists: 'optimize'

    Usage: warpsmith [OPTIONS] <COMMAND>

    For more information, try '--help'.
    ");
}

#[test]
fn wrong_usage_is_an_object_with_json() {
    snapshot!(shown(&["judge", "--json", "--repeat", "0"]), @r#"
    exit_code: 2
    ----- stdout -----
    {
      "format": 1,
      "failure": {
        "kind": "config",
        "code": "usage",
        "message": "invalid value '0' for '--repeat <N>': 0 is not in 1..=1000",
        "hint": "`warpsmith help` lists the verbs, `warpsmith VERB --help` its flags"
      }
    }
    ----- stderr -----
    error: invalid value '0' for '--repeat <N>': 0 is not in 1..=1000

    For more information, try '--help'.
    "#);
}

#[test]
fn a_schema_is_printed_and_an_unknown_one_refused() {
    let context = Context::new();
    for name in [
        "verdict",
        "task",
        "failure",
        "reward",
        "trajectory",
        "event",
    ] {
        let output = context.bare(&["schema", name]).output().unwrap();
        assert_eq!(code(&output), 0);
        assert!(json(&output)["properties"].is_object(), "{name}");
    }
    snapshot!(shown(&["schema", "verdicts"]), @"
    exit_code: 2
    ----- stdout -----
    ----- stderr -----
    error: there is no schema named `verdicts`
    hint: the schemas are verdict, task, failure, reward, trajectory, event
    ");
}

#[test]
fn completions_know_the_verbs() {
    let context = Context::new();
    for shell in ["bash", "zsh", "fish"] {
        let output = context.bare(&["completions", shell]).output().unwrap();
        let script = String::from_utf8(output.stdout.clone()).unwrap();
        assert_eq!(code(&output), 0);
        assert!(
            script.contains("replay") && script.contains("min-speedup"),
            "{shell}"
        );
    }
}

#[test]
fn caches_are_listed_and_cleaned() {
    let context = Context::new();
    context.write("cache/objects/a.o", &"x".repeat(2000));
    let run = |arguments: &[&str]| context.shown(&context.bare(arguments).output().unwrap());
    snapshot!(run(&["cache", "ls"]), @"
    exit_code: 0
    ----- stdout -----
    objects         2 kB  compiled kernels by content
    baselines       0 kB  measured times of the original modules
    harness         0 kB  the Python side of the judge
    evidence        0 kB  bundles that let a verdict be replayed
    python          0 kB  our own Python environment with PyTorch
    models          0 kB  language models
    support         0 kB  precompiled headers and the support library
    compile         0 kB  what torch.compile generated for baselines
    kill-rates      0 kB  how many wrong variants of a task the judge refuses
    graphs          0 kB  operator graphs captured from modules
    tuning          0 kB  times of variants of the compiler's kernels
    fleet           0 kB  the server that connects machines
    total           2 kB  in [HERE]/cache
    ----- stderr -----
    ");
    snapshot!(run(&["cache", "clean"]), @"
    exit_code: 2
    ----- stdout -----
    ----- stderr -----
    error: the following required arguments were not provided:
      <NAME|--all>

    Usage: warpsmith cache clean <NAME|--all>

    For more information, try '--help'.
    ");
    snapshot!(run(&["cache", "clean", "object"]), @"
    exit_code: 2
    ----- stdout -----
    ----- stderr -----
    error: there is no cache named `object`
    hint: the caches are objects, baselines, harness, evidence, python, models, support, compile, kill-rates, graphs, tuning, fleet
    ");
    snapshot!(run(&["cache", "clean", "objects"]), @"
    exit_code: 0
    ----- stdout -----
    freed 2 kB
    ----- stderr -----
    ");
    snapshot!(run(&["cache", "clean", "--all", "--json"]), @r#"
    exit_code: 0
    ----- stdout -----
    {
      "format": 1,
      "freed_bytes": 0
    }
    ----- stderr -----
    "#);
    assert!(!context.path("cache/objects").exists());
}

#[test]
fn the_doctor_lists_every_protection() {
    let context = Context::new();
    // What is still being fetched is no model yet.
    context.write("cache/models/whole.gguf", "");
    context.write("cache/models/.half.gguf.cc324af070c2.partial", "");
    let output = context.bare(&["doctor", "--json"]).output().unwrap();
    let report = json(&output);
    assert_eq!(report["models"], serde_json::json!(["whole.gguf"]));
    let expected = if report["ready"] == true { 0 } else { 3 };
    assert_eq!(code(&output), expected);
    for key in [
        "cpu",
        "memory_bytes",
        "disk",
        "gpus",
        "cxx",
        "nvcc",
        "python",
        "models",
        "advice",
        "contained",
    ] {
        assert!(report.get(key).is_some(), "no `{key}`");
    }
    let protections = report["isolation"].as_object().unwrap();
    assert!(protections.len() >= 12);
    for (name, protection) in protections {
        let reason = protection.get("by").or(protection.get("why"));
        assert!(
            reason.is_some_and(serde_json::Value::is_string),
            "{name}: {protection}"
        );
    }
    // A person sees the same ones.
    let shown = context.shown(&context.bare(&["doctor"]).output().unwrap());
    for name in protections.keys() {
        assert!(
            shown.contains(&format!(" {name}: ")),
            "{name} is not in\n{shown}"
        );
    }
}

#[test]
fn a_folder_with_sets_names_them() {
    let context = Context::new();
    context.write("sets/train.jsonl", "");
    context.write("sets/validation.jsonl", "");
    let arguments = [
        "rollout", "--tasks", "sets", "--policy", "teacher", "--json",
    ];
    let output = context.bare(&arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let failure = &json(&output)["failure"];
    assert_eq!(failure["message"], "`sets` holds no task");
    let hint = failure["hint"].as_str().unwrap();
    assert!(
        hint.contains("`sets/train.jsonl`") && hint.contains("`sets/validation.jsonl`"),
        "{hint}"
    );
}
