use std::path::Path;
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let cuda = std::env::var("CUDA").is_ok();
    let caches = warpsmith_machine::Caches::locate().unwrap();
    let python = warpsmith_machine::find_python(&warpsmith_machine::PythonChoice::Given(std::env::var("PY").unwrap_or("/opt/ws/venv/bin/python".into()).into()), &caches).unwrap().unwrap();
    let t = std::time::Instant::now();
    let mut judge = warpsmith_judge::Judge::start(warpsmith_judge::Options {
        target: if cuda { warpsmith_schema::Target::Cuda } else { warpsmith_schema::Target::Cpu }, device: 0, profile: warpsmith_schema::Profile::Full,
        isolation: warpsmith_sandbox::Isolation::Strict, compile_mode: Some("default".into()), seed: None, caches, python }).unwrap();
    eprintln!("started {:?}", t.elapsed());
    for dir in &args[1..] {
        let t = std::time::Instant::now();
        let dir = Path::new(dir);
        let source = std::fs::read_to_string(dir.join("model.py")).unwrap();
        let mut files = std::collections::BTreeMap::new();
        files.insert("model_new.py".to_owned(), std::fs::read(dir.join("model_new.py")).unwrap());
        for e in std::fs::read_dir(dir.join(if cuda && dir.join("kernels_cuda").exists() { "kernels_cuda" } else { "kernels" })).unwrap() { let e = e.unwrap(); files.insert(format!("kernels/{}", e.file_name().to_string_lossy()), std::fs::read(e.path()).unwrap()); }
        let text: String = files.values().map(|b| String::from_utf8_lossy(b).into_owned()).collect();
        let form = if text.contains("warpsmith_kernels") { warpsmith_schema::Form::Plain } else { warpsmith_schema::Form::CudaAgent };
        let r = judge.judge(&warpsmith_judge::TaskSource { name: "x".into(), source }, &warpsmith_schema::Submission { form, files });
        match r {
            Ok(j) => { let v = j.verdict; println!("{} {} {:?} {} | cand {:?} eager {:?} compile {:?} burst {:?} single {:?} const {:?} spread {:?} def {} | {:?} | {:.1}s", dir.file_name().unwrap().to_string_lossy(), v.status.name(), v.rule, v.reason.clone().unwrap_or_default().lines().last().unwrap_or(""), v.times_us.as_ref().map(|t| t.candidate.0), v.times_us.as_ref().map(|t| t.eager.0), v.times_us.as_ref().and_then(|t| t.compile.map(|c| c.0)), v.times_us.as_ref().and_then(|t| t.burst.map(|c| c.0)), v.times_us.as_ref().map(|t| t.single.0), v.times_us.as_ref().map(|t| t.constant.0), v.times_us.as_ref().map(|t| t.spread.0), v.trust.deferred_work, v.seconds, t.elapsed().as_secs_f64());
              for n in &v.notes { println!("   note {n}"); } if let Some(b) = j.evidence.samples["baselines"].as_object() { println!("   eager {} compile {} const {}", b["eager"], b["compile"], b["constant"]); }
              if std::env::var("SHOW").is_ok() { println!("{}", serde_json::to_string_pretty(&v).unwrap()); println!("{}", j.evidence.printed); } }
            Err(e) => println!("{} ERROR {:?}", dir.file_name().unwrap().to_string_lossy(), e.failure()),
        }
    }
}
