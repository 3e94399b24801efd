// Real runs for the dashboard, small enough for two cores without a GPU: real judges, a policy that follows a script, the
// compiler, and a model of random numbers that learns one reply by heart and is then trained by its rewards.
//   node real_runs.cjs BINARY RUNS WORK        a run that is there already is kept; PROFILE=verify where the machine is too noisy to time
const { execFileSync } = require("child_process");
const fs = require("fs");
const path = require("path");

const [binary, runs, work] = process.argv.slice(2).map((one) => path.resolve(one));
const read = (file) => fs.readFileSync(file, "utf8");
const write = (name, content) => fs.writeFileSync(path.join(work, name), content);
const lines = (all) => all.map((one) => JSON.stringify(one) + "\n").join("");
fs.mkdirSync(work, { recursive: true });

// Tasks: the embedded examples with fewer rows, so that a judgement takes seconds.
const EXAMPLES = ["softmax", "row_reduction", "layernorm", "pointwise_chain"];
const smaller = (source) => source.replace(/ROWS, (\w+) = \d+, (\d+)/, "ROWS, $1 = 256, $2");
const files = (name) => {
  const folder = path.join("examples", name, "kernels");
  const kernels = fs.readdirSync(folder).map((file) => [`kernels/${file}`, read(path.join(folder, file))]);
  return Object.fromEntries([["model_new.py", read(path.join("examples", name, "model_new.py"))], ...kernels]);
};
const reply = (all) => Object.entries(all).map(([name, text]) => `write ${name}\n\`\`\`\n${text.trimEnd()}\n\`\`\`\n`).join("\n");
const changed = (all, from, to) => Object.fromEntries(Object.entries(all).map(([name, text]) => [name, text.replace(from, to)]));
const broken = (all) => changed(all, /return 0;/, "return none_of_it;");

const tasks = EXAMPLES.map((name, number) => ({ level: 1 + (number % 2), problem_id: number + 1, name, code: smaller(read(`examples/${name}/model.py`)) }));
const id = (task) => `level${task.level}/${task.problem_id}`;
write("tasks.jsonl", lines(tasks));

// The first sample repairs what did not compile, the second gives up, and the third is right at once or calls what is not there.
const script = [];
const say = (task, sample, text) => script.push({ text, task: id(task), sample });
for (const [number, task] of tasks.entries()) {
  const right = files(task.name);
  const [, kernel] = Object.keys(right);
  // No two samples submit the same.
  const marked = (sample) => ({ ...right, [kernel]: `// ${sample}\n${right[kernel]}` });
  say(task, 1, reply(broken(marked(1))));
  say(task, 1, reply(marked(1)));
  say(task, 2, reply(broken(marked(2))));
  say(task, 2, "I cannot see what is wrong.");
  if (number % 2 === 0) say(task, 3, reply(marked(3)));
  else say(task, 3, reply({ ...marked(3), "model_new.py": right["model_new.py"].replace(/kernels\.\w+\(/, "kernels.nothing(") }));
}
write("script.jsonl", lines(script));
// In the benchmark it is right about every second task.
const half = tasks.flatMap((task, number) => [1, 2].map((sample) => ({ text: reply(number % 2 ? broken(files(task.name)) : files(task.name)), task: id(task), sample })));
write("half.jsonl", lines(half));

// One small task under several names, for the model of random numbers.
const small = read("crates/cli/tests/common/scale_relu.py");
const taught = [1, 2, 3, 4].map((n) => ({ level: 1, problem_id: n, name: `scale_relu ${n}`, code: `${small}\n# ${n}\n` }));
write("taught.jsonl", lines(taught));
write("trained.jsonl", lines(taught.slice(0, 2)));
write("held.jsonl", lines(taught.slice(2)));
const solution = { "model_new.py": read("crates/agent/src/prompts/example.py"), "kernels/scale_relu.cpp": read("crates/agent/src/prompts/example.cpp") };
write("teacher.jsonl", lines(taught.map((task) => ({ text: reply(solution), task: id(task), sample: 1 }))));

write("idle.jsonl", lines([{ text: "Nothing is faster than this." }]));

const DONE = ".made-whole";
const TRIES = 8;
const PROFILE = process.env.PROFILE || "rl";
const CPU = ["--target", "cpu", "--no-compile"];
const at = (name) => path.join(runs, name);
const run = (name, ...more) => {
  if (fs.existsSync(path.join(at(name), DONE))) return;
  const begun = Date.now();
  // A machine that is too noisy to time is asked again: what was judged is kept.
  for (let tries = 1; ; tries++) {
    try {
      execFileSync(binary, [...more, "--out", at(name), "-q", "--json"], { cwd: work, stdio: ["ignore", "ignore", "pipe"] });
      break;
    } catch (error) {
      if (error.status !== 3 || tries === TRIES) throw new Error(`${name}: exit ${error.status}\n${error.stderr}`);
    }
  }
  fs.writeFileSync(path.join(at(name), DONE), "");
  console.log(`made ${name} in ${Math.round((Date.now() - begun) / 1000)} s`);
};

const scripted = (script) => ["--tasks", "tasks.jsonl", "--policy", `script:${script}`, ...CPU, "--profile", PROFILE];
run("rollout", "rollout", ...scripted("script.jsonl"), "--samples", "3", "--repairs", "1");
run("bench-script", "bench", ...scripted("half.jsonl"), "--samples", "2", "--repairs", "0");
run("bench-compiler", "bench", "--tasks", "tasks.jsonl", "--policy", "compiler", ...CPU, "--profile", PROFILE);
run("demonstrations", "rollout", "--tasks", "taught.jsonl", "--policy", "script:teacher.jsonl", ...CPU, "--profile", "verify", "--prompt", "short", "--repairs", "0");
const model = path.join(work, "model");
execFileSync(process.execPath, [path.join(__dirname, "tiny_model.cjs"), model]);
run("sft", "train", "sft", "--data", at("demonstrations"), "--model", model, "--fine-tuning", "full", "--epochs", "60", "--batch", "1", "--learning-rate", "0.006", "--warmup-steps", "8", "--held-out", "0.25", "--evaluate-every", "20");
run("grpo", "train", "grpo", "--tasks", "trained.jsonl", "--validation", "held.jsonl", "--model", path.join(at("sft"), "published"), "--fine-tuning", "full", ...CPU, "--profile", PROFILE, "--prompt", "short", "--steps", "4", "--tasks-per-step", "2", "--samples", "4", "--refills", "1", "--max-tokens", "700", "--learning-rate", "0.0003", "--cut-replies", "penalise", "--evaluate-every", "2", "--validation-samples", "2");
run("optimize", "optimize", path.resolve("examples/modules/vit_block.py"), "--policy", "script:idle.jsonl", ...CPU);
