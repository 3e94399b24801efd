//! What compilers are told, and what they may see.

use super::precompiled::PrecompiledHeader;
use super::{CompileJob, Language, Toolchain};
use fs_err as fs;
use std::path::Path;
use std::path::PathBuf;
use warpsmith_schema::Target;

pub(crate) mod build_flags {
    use std::path::PathBuf;

    /// For compilers set up to link the C++ runtime statically: a second copy of it would bring its imports into the
    /// candidate's, and break exceptions in whatever shares the process.
    pub(crate) fn shared_runtime() -> [String; 3] {
        ["-Wl,-Bdynamic", "-l:libstdc++.so.6", "-l:libgcc_s.so.1"].map(str::to_owned)
    }

    pub(crate) fn includes(dirs: &[PathBuf]) -> Vec<String> {
        dirs.iter()
            .map(|dir| format!("-I{}", dir.display()))
            .collect()
    }
}

/// The folder that a compiler outside the system's own folders was installed to.
fn home_of(program: &Path) -> Option<PathBuf> {
    let real = fs::canonicalize(program).ok()?;
    let home = real.parent()?.parent()?;
    (home.components().count() > 1 && !home.starts_with("/usr")).then(|| home.to_path_buf())
}

impl Toolchain {
    pub(super) fn compile_arguments(&self, job: &CompileJob<'_>) -> Vec<String> {
        let mut arguments = vec![
            "-c".to_owned(),
            job.path.to_owned(),
            "-o".to_owned(),
            "out.o".to_owned(),
        ];
        arguments.extend(match job.language {
            Language::Cuda {
                torch,
                shared_templates,
            } => self.nvcc_flags(torch, shared_templates),
            Language::Cxx { header } => self.cxx_flags(header),
        });
        arguments.extend(job.flags.iter().cloned());
        if job.provided {
            arguments.push("-I.".to_owned());
        }
        if job.language.torch() {
            arguments.push(format!("-DTORCH_EXTENSION_NAME={}", job.extension));
        }
        if let Language::Cxx {
            header: Some(header),
        } = job.language
        {
            let path = self.precompiled_path(header);
            arguments.extend(["-include".to_owned(), path.display().to_string()]);
        }
        arguments
    }

    fn nvcc_flags(&self, torch: bool, shared_templates: bool) -> Vec<String> {
        let arch = self.arch.as_deref().unwrap_or("90");
        let arch = if arch == "90" { "90a" } else { arch };
        let mut flags = ["-O3", "-std=c++17"].map(str::to_owned).to_vec();
        flags.push(format!("-gencode=arch=compute_{arch},code=sm_{arch}"));
        flags.push(format!("-ccbin={}", self.cxx.path.display()));
        flags.extend(
            ["-lineinfo", "-Xptxas=-v", "-Xcompiler=-fPIC", "--threads=0"].map(str::to_owned),
        );
        if shared_templates {
            flags.push("-static-global-template-stub=false".to_owned());
        }
        flags.extend(self.include_flags(torch));
        flags
    }

    pub(super) fn cxx_flags(&self, header: Option<PrecompiledHeader>) -> Vec<String> {
        let optimisation = header.unwrap_or(PrecompiledHeader::Torch).optimisation();
        let flags = optimisation.iter().chain(&["-std=c++17", "-fPIC", "-w"]);
        let mut flags: Vec<String> = flags.map(|flag| (*flag).to_owned()).collect();
        flags.extend(self.include_flags(header.is_some()));
        flags
    }

    fn include_flags(&self, torch: bool) -> Vec<String> {
        let mut flags = Vec::new();
        if torch {
            flags.extend(build_flags::includes(&self.python.torch.include_dirs));
            flags.extend(build_flags::includes(self.python.include.as_slice()));
            flags.push("-DTORCH_API_INCLUDE_EXTENSION_H".to_owned());
        }
        if self.target == Target::Cuda {
            flags.extend(build_flags::includes(&self.cuda_dirs("include")));
        }
        flags
    }

    /// Folders of the toolkit and of the libraries that PyTorch brings.
    pub(super) fn cuda_dirs(&self, kind: &str) -> Vec<PathBuf> {
        let mut dirs = Vec::new();
        if let Some(nvcc) = &self.nvcc {
            let lib = if kind == "lib" { "lib64" } else { kind };
            dirs.push(nvcc.cuda_home.join(lib));
        }
        let brought = self
            .python
            .torch
            .dir
            .parent()
            .map(|site| site.join("nvidia"));
        if let Some(entries) = brought.and_then(|dir| fs::read_dir(dir).ok()) {
            let mut found: Vec<PathBuf> = entries
                .flatten()
                .map(|entry| entry.path().join(kind))
                .collect();
            found.sort();
            dirs.extend(found);
        }
        dirs.retain(|dir| dir.is_dir());
        dirs
    }

    /// The shared CUDA libraries a candidate may use, by file: those PyTorch loads, so that there is one of each.
    pub(super) fn cuda_libraries(&self) -> Vec<String> {
        let dirs = self.cuda_dirs("lib");
        let find = |stem: &str| {
            dirs.iter().rev().find_map(|dir| {
                let entries = fs::read_dir(dir).ok()?;
                let mut names: Vec<PathBuf> = entries
                    .flatten()
                    .map(|entry| entry.path())
                    .filter(|path| {
                        path.file_name().is_some_and(|name| {
                            name.to_string_lossy().starts_with(&format!("{stem}.so"))
                        })
                    })
                    .collect();
                names.sort_by_key(|path| path.as_os_str().len());
                names.into_iter().next()
            })
        };
        ["libcudart", "libcublas", "libcublasLt", "libcudnn"]
            .iter()
            .filter_map(|stem| find(stem))
            .map(|path| path.display().to_string())
            .collect()
    }

    pub(super) fn clean_path(&self) -> String {
        let mut path = "/usr/bin:/bin".to_owned();
        if let Some(nvcc) = &self.nvcc {
            path = format!("{}:{path}", nvcc.cuda_home.join("bin").display());
        }
        path
    }

    pub(super) fn readable(&self) -> Vec<PathBuf> {
        let mut paths: Vec<PathBuf> = warpsmith_sandbox::system_paths();
        paths.extend(self.python.torch.include_dirs.iter().cloned());
        paths.push(self.python.torch.lib_dir.clone());
        paths.extend(self.python.include.clone());
        let headers = PrecompiledHeader::of(self.target).iter();
        paths.extend(headers.map(|header| self.precompiled_dir(*header)));
        paths.extend(home_of(&self.cxx.path));
        if self.target == Target::Cuda {
            paths.extend(self.nvcc.iter().map(|nvcc| nvcc.cuda_home.clone()));
            paths.extend(
                self.python
                    .torch
                    .dir
                    .parent()
                    .map(|site| site.join("nvidia")),
            );
            let triton = self.python.torch.dir.parent();
            paths.extend(triton.map(|site| site.join("triton/backends/nvidia/bin")));
        }
        paths
    }

    pub(super) fn compiler_path(&self, cuda: bool) -> &Path {
        match (&self.nvcc, cuda) {
            (Some(nvcc), true) => &nvcc.path,
            _ => &self.cxx.path,
        }
    }

    pub(super) fn compiler_id(&self, cuda: bool) -> String {
        match (&self.nvcc, cuda) {
            (Some(nvcc), true) => format!("{} {}", nvcc.version, self.cxx.id),
            _ => self.cxx.id.clone(),
        }
    }
}
