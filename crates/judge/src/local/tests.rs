use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use warpsmith_machine::{Caches, PythonChoice, find_python};
use warpsmith_sandbox::Isolation;
use warpsmith_schema::{MODEL_NEW, Profile, Rule, Rules, Status, SubmissionForm, Target};

use super::*;
use crate::judge::device_memory::MemoryShortage;
use crate::pool::JudgePool;

fn config(pool: Option<JudgePool>) -> JudgeConfig {
    let caches = Caches::locate().unwrap();
    JudgeConfig {
        target: Target::Cpu,
        device: 0,
        profile: Profile::Verify,
        rules: Rules::Own,
        isolation: Isolation::Weak,
        compile_mode: None,
        seed: None,
        pool,
        python: find_python(&PythonChoice::Auto, &caches).unwrap().unwrap(),
        caches,
    }
}

fn task() -> Task {
    let source = "import torch\n\nclass Model(torch.nn.Module):\n    def __init__(self, features):\n        super().__init__()\n        \
        self.scale = torch.nn.Parameter(torch.ones(features))\n\n    def forward(self, x):\n        return torch.relu(x * self.scale)\n\n\
        def get_inputs():\n    return [torch.randn(64, 32)]\n\ndef get_init_inputs():\n    return [32]\n";
    Task::of_source("scale_relu", source)
}

/// One that is right, or one that leaves out the scale.
fn submission(right: bool) -> Submission {
    let (model, kernel) = (
        include_str!("../../../agent/src/prompts/example.py"),
        include_str!("../../../agent/src/prompts/example.cpp"),
    );
    let kernel = if right {
        kernel.to_owned()
    } else {
        kernel.replace(" * scale[i]", "")
    };
    Submission {
        form: SubmissionForm::Plain,
        files: [
            (MODEL_NEW, model.to_owned()),
            ("kernels/scale_relu.cpp", kernel),
        ]
        .map(|(path, text)| (path.to_owned(), text.into_bytes()))
        .into(),
    }
}

fn shortage() -> JudgeError {
    let (free, taken) = (1 << 30, 100 << 30);
    MemoryShortage { free, taken }.into()
}

/// What a GPU's memory does to a judgement is injected where the supervisor would say so; all else is real.
#[test]
fn what_lacked_memory_in_company_is_judged_once_more_alone_and_then_stands() {
    let pool = JudgePool::of(2);
    let [mut first, mut second] =
        [(); 2].map(|()| LocalJudge::start(config(Some(pool.clone()))).unwrap());
    let (task, right, wrong) = (task(), submission(true), submission(false));
    let (busy, seen_busy) = (AtomicBool::new(false), AtomicBool::new(false));
    let tries = AtomicU32::new(0);
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            first.supervised(|supervisor| {
                busy.store(true, Ordering::SeqCst);
                let judged = supervisor.judge(&task, &right);
                busy.store(false, Ordering::SeqCst);
                judged
            })
        });
        while !busy.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(1));
        }
        let judged = second.supervised(|supervisor| {
            if tries.fetch_add(1, Ordering::SeqCst) == 0 {
                seen_busy.store(busy.load(Ordering::SeqCst), Ordering::SeqCst);
                return Err(shortage());
            }
            assert!(!busy.load(Ordering::SeqCst), "another judge was at work");
            supervisor.judge(&task, &wrong)
        });
        let verdict = judged.unwrap().verdict;
        assert_eq!(verdict.status, Status::Mismatch);
        assert!(verdict.reason.unwrap().contains("judged again alone"));
        assert_eq!(
            other.join().unwrap().unwrap().verdict.status,
            Status::Passed
        );
    });
    assert!(seen_busy.load(Ordering::SeqCst));
    assert_eq!(tries.load(Ordering::SeqCst), 2);
    // Those that were sent away start again, and what is alone once is not so for ever.
    assert!(lock(&first.seat).is_none());
    for judge in [&mut first, &mut second] {
        assert_eq!(judge.judge(&task, &right).unwrap().status, Status::Passed);
        let reason = judge.judge(&task, &wrong).unwrap().reason.unwrap();
        assert!(!reason.contains("alone"), "{reason}");
    }
}

/// A busy machine is no reason to import PyTorch again, which would keep it busy; anything else is.
#[test]
fn processes_outlive_noise_and_no_other_failure() {
    let mut judge = LocalJudge::start(config(None)).unwrap();
    let (task, right) = (task(), submission(true));
    let noise = JudgeError::crowded("the candidate", 1.0);
    let other = JudgeError::infrastructure("protocol", "a reply is malformed");
    for (error, outlived) in [(noise, true), (other, false)] {
        let ids = judge.supervised(|supervisor| {
            let judged = supervisor.judge(&task, &right)?;
            assert_eq!(judged.verdict.status, Status::Passed);
            let before = supervisor.trusted_id();
            supervisor.clean_up_after(&error);
            let judged = supervisor.judge(&task, &right)?;
            assert_eq!(judged.verdict.status, Status::Passed);
            Ok([before, supervisor.trusted_id()])
        });
        let [before, after] = ids.unwrap();
        assert!(before.is_some() && (before == after) == outlived, "{error}");
    }
}

#[test]
fn what_lacks_memory_alone_too_is_not_tried_again() {
    for (pool, tries) in [(None, 1), (Some(JudgePool::of(1)), 2)] {
        let mut judge = LocalJudge::start(config(pool)).unwrap();
        let tried = AtomicU32::new(0);
        let failed = judge.supervised(|_| {
            tried.fetch_add(1, Ordering::SeqCst);
            Err::<(), _>(shortage())
        });
        assert_eq!(failed.unwrap_err().failure().code, "memory_shortage");
        assert_eq!(tried.load(Ordering::SeqCst), tries);
    }
}

/// As the trusted process says it: a task that others leave no room for, and one that runs out of memory on the way.
#[test]
fn a_task_that_does_not_fit_in_company_is_tried_once_more_alone() {
    let too_large = || JudgeError::Task {
        code: "too_large".to_owned(),
        message: "it takes 30 GiB, more than a quarter of what is free".to_owned(),
    };
    let out_of_memory = || JudgeError::Infrastructure {
        code: "out_of_memory",
        message: "trusted process, draw: CUDA out of memory".to_owned(),
        hint: None,
    };
    let device_busy = || JudgeError::device_busy("a tiny kernel waited 1129 us");
    for lacking in [
        &too_large as &dyn Fn() -> JudgeError,
        &out_of_memory,
        &device_busy,
    ] {
        let pool = JudgePool::of(2);
        let mut judges = [(); 2].map(|()| LocalJudge::start(config(Some(pool.clone()))).unwrap());
        judges[0].survey(&task()).unwrap();
        let tries = AtomicU32::new(0);
        judges[1]
            .supervised(|supervisor| {
                if tries.fetch_add(1, Ordering::SeqCst) == 0 {
                    return Err(lacking());
                }
                supervisor.survey(&task())
            })
            .unwrap();
        assert!(lock(&judges[0].seat).is_none(), "the other kept its memory");
        // Alone too it does not fit: that stands.
        tries.store(0, Ordering::SeqCst);
        let failed = judges[1].supervised(|_| {
            tries.fetch_add(1, Ordering::SeqCst);
            Err::<(), _>(lacking())
        });
        assert_eq!(failed.unwrap_err().failure().code, lacking().failure().code);
        assert_eq!(tries.load(Ordering::SeqCst), 2);
    }
}

/// A product, and what follows it in a kernel or in PyTorch.
#[test]
fn by_mixed_rules_something_must_be_replaced_and_the_rest_is_listed() {
    let source = "import torch\n\nclass Model(torch.nn.Module):\n    def __init__(self, features):\n        super().__init__()\n        \
        self.scale = torch.nn.Parameter(torch.ones(features))\n        self.linear = torch.nn.Linear(features, features)\n\n    \
        def forward(self, x):\n        return torch.relu(self.linear(x) * self.scale)\n\n\
        def get_inputs():\n    return [torch.randn(64, 32)]\n\ndef get_init_inputs():\n    return [32]\n";
    let task = Task::of_source("linear_scale_relu", source);
    let own = "out = torch.empty_like(x); kernels.scale_relu(out, x, self.scale, x.numel(), x.shape[-1]); return out";
    let solution = |rest: &str| {
        let model = format!(
            "import torch\nfrom warpsmith_kernels import kernels\n\nclass ModelNew(torch.nn.Module):\n    def __init__(self, features):\n        \
             super().__init__()\n        self.scale = torch.nn.Parameter(torch.ones(features))\n        \
             self.linear = torch.nn.Linear(features, features)\n\n    def forward(self, x):\n        x = self.linear(x)\n        {rest}\n"
        );
        let mut submission = submission(true);
        submission
            .files
            .insert(MODEL_NEW.to_owned(), model.into_bytes());
        submission
    };
    let honest = solution(own);
    let by_torch = solution("return torch.relu_(x * self.scale)");
    // A kernel that only copies.
    let copied = solution(
        "x = torch.relu(x * self.scale); ones = torch.ones(32); out = torch.empty_like(x); \
         kernels.scale_relu(out, x, ones, x.numel(), x.shape[-1]); return out",
    );
    let mut mixed = LocalJudge::start(JudgeConfig {
        rules: Rules::Mixed,
        ..config(None)
    })
    .unwrap();
    let verdict = mixed.judge(&task, &honest).unwrap();
    assert_eq!(
        (verdict.status, verdict.rules),
        (Status::Passed, Rules::Mixed),
        "{:?}",
        verdict.reason
    );
    let listed = verdict.torch_operators.unwrap();
    assert_eq!(listed.len(), 1, "{listed:?}");
    assert_eq!(
        (listed[0].name.as_str(), listed[0].calls),
        ("aten::addmm", 1.0)
    );
    assert!(
        listed[0]
            .share
            .is_some_and(|share| share > 0.0 && share < 1.0),
        "{listed:?}"
    );
    for cheating in [&by_torch, &copied] {
        let verdict = mixed.judge(&task, cheating).unwrap();
        assert_eq!(
            (verdict.status, verdict.rule),
            (Status::Cheating, Some(Rule::NothingReplaced)),
            "{:?}",
            verdict.reason
        );
        assert_eq!(verdict.torch_operators.unwrap().len(), 3);
    }
    // A wrong one is wrong by these rules too.
    let wrong = solution("return x * self.scale");
    assert_eq!(mixed.judge(&task, &wrong).unwrap().status, Status::Mismatch);
    drop(mixed);
    let mut strict = LocalJudge::start(config(None)).unwrap();
    for solution in [&honest, &by_torch, &copied] {
        let verdict = strict.judge(&task, solution).unwrap();
        assert_eq!(
            (verdict.status, verdict.rule),
            (Status::Cheating, Some(Rule::ForbiddenOperator)),
            "{:?}",
            verdict.reason
        );
        assert_eq!((verdict.rules, verdict.torch_operators), (Rules::Own, None));
    }
}
