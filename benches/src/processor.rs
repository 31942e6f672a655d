//! The processor on which figures were measured. Never the machine.

use std::collections::HashSet;
use std::fmt;
use std::fs;

pub struct Processor {
    model: String,
    /// Family and model number. A virtual machine may have a name without a number, which several processors share.
    kind: Option<(u32, u32)>,
    cores: usize,
    /// How many threads this program may run at a time.
    threads: usize,
    l3: Option<String>,
}

impl Processor {
    /// The system's description of the processor that this runs on.
    pub fn here() -> Self {
        let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Self::of(&text, threads, last_level_cache())
    }

    fn of(cpuinfo: &str, threads: usize, l3: Option<String>) -> Self {
        let fields = |name: &str| {
            let lines = cpuinfo.lines().filter_map(|line| line.split_once(':'));
            let own = lines.filter(|(it, _)| it.trim() == name).map(|(_, value)| value.trim().to_owned());
            own.collect::<Vec<_>>()
        };
        let number = |name| fields(name).first().and_then(|it| it.parse().ok());
        let unnamed = || format!("unnamed {}", std::env::consts::ARCH);
        // A core's threads have equal numbers.
        let cores: HashSet<_> = fields("physical id").into_iter().zip(fields("core id")).collect();
        Self {
            model: fields("model name").into_iter().find(|it| !it.is_empty()).unwrap_or_else(unnamed),
            kind: number("cpu family").zip(number("model")),
            cores: if cores.is_empty() { threads } else { cores.len() },
            threads,
            l3,
        }
    }

    fn cores(&self) -> String {
        format!("{} core{}", self.cores, if self.cores == 1 { "" } else { "s" })
    }

    /// As in `amd-epyc-2-cores`: the name of the page for measurements on it.
    pub fn slug(&self) -> String {
        // Without the frequency. The number of cores is the chip's, although a virtual machine has only a part.
        let name = self.model.split('@').next().unwrap_or_default().to_lowercase();
        let name = name.replace("(r)", " ").replace("(tm)", " ").replace('_', "-");
        let says_nothing = |word: &&str| ["cpu", "processor"].contains(word) || word.ends_with("-core");
        let words = name.split(|it: char| !it.is_ascii_alphanumeric() && it != '-');
        let words: Vec<_> = words.filter(|word| !word.is_empty() && !says_nothing(word)).collect();
        format!("{}-{}", words.join("-"), self.cores().replace(' ', "-"))
    }
}

/// As in `AMD EPYC (family 25, model 1), 2 cores, 32 MiB of L3`.
impl fmt::Display for Processor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.model)?;
        if let Some((family, model)) = self.kind {
            write!(f, " (family {family}, model {model})")?;
        }
        write!(f, ", {}", self.cores())?;
        if self.threads != self.cores {
            write!(f, ", {} threads at a time", self.threads)?;
        }
        match &self.l3 {
            Some(size) => write!(f, ", {size} of L3"),
            None => f.write_str(", L3 unknown"),
        }
    }
}

/// The third-level cache that the first processor shares.
fn last_level_cache() -> Option<String> {
    let caches = fs::read_dir("/sys/devices/system/cpu/cpu0/cache").ok()?;
    let mut paths = caches.filter_map(|entry| Some(entry.ok()?.path()));
    let l3 = paths.find(|path| fs::read_to_string(path.join("level")).is_ok_and(|level| level.trim() == "3"))?;
    Some(size(fs::read_to_string(l3.join("size")).ok()?.trim()))
}

/// `32768K` in MiB; unchanged if it has another form.
fn size(kib: &str) -> String {
    match kib.strip_suffix('K').and_then(|kib| kib.parse::<u64>().ok()) {
        Some(kib) if kib >= 1024 => format!("{} MiB", kib / 1024),
        Some(kib) => format!("{kib} KiB"),
        None => kib.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EPYC: &str = "processor\t: 0\ncpu family\t: 25\nmodel\t\t: 1\nmodel name\t: AMD EPYC\nphysical id\t: 0\n\
        core id\t\t: 0\n\nprocessor\t: 1\ncpu family\t: 25\nmodel\t\t: 1\nmodel name\t: AMD EPYC\nphysical id\t: 0\n\
        core id\t\t: 1\n";

    #[test]
    fn a_processor_shows_model_cores_and_cache() {
        let processor = Processor::of(EPYC, 2, Some(size("32768K")));
        assert_eq!(processor.to_string(), "AMD EPYC (family 25, model 1), 2 cores, 32 MiB of L3");
        assert_eq!(processor.slug(), "amd-epyc-2-cores");
    }

    /// Two threads on one core.
    #[test]
    fn threads_are_no_cores() {
        let text = EPYC.replace("core id\t\t: 1", "core id\t\t: 0");
        let processor = Processor::of(&text, 2, None);
        let told = "AMD EPYC (family 25, model 1), 1 core, 2 threads at a time, L3 unknown";
        assert_eq!(processor.to_string(), told);
    }

    #[test]
    fn slugs_omit_meaningless_words() {
        for (name, slug) in [
            ("AMD EPYC 7B13 64-Core Processor", "amd-epyc-7b13-2-cores"),
            ("Intel(R) Xeon(R) Platinum 8259CL CPU @ 2.50GHz", "intel-xeon-platinum-8259cl-2-cores"),
            ("Intel(R) Core(TM) i7-8650U CPU @ 1.90GHz", "intel-core-i7-8650u-2-cores"),
            ("Neoverse/../V1", "neoverse-v1-2-cores"),
        ] {
            assert_eq!(Processor::of(&format!("model name\t: {name}\n"), 2, None).slug(), slug);
        }
    }

    /// As on most systems with ARM.
    #[test]
    fn unnamed_processors_get_their_architectures_name() {
        let slug = Processor::of("processor\t: 0\n", 4, None).slug();
        assert_eq!(slug, format!("unnamed-{}-4-cores", std::env::consts::ARCH.replace('_', "-")));
    }
}
