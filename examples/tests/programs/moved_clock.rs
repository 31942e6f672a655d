//! `MovedClock`: processes whose clocks a test moves.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// The clock for all processes that are started with its [environment](Self::environment).
pub(crate) struct MovedClock {
    folder: PathBuf,
    file: File,
    ahead: i64,
}

impl MovedClock {
    /// Compiles the library that moves clocks, with the C compiler that Rust uses to link.
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("moved-clock-{}-{number}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/moved_clock.c");
        let library = folder.join("moved_clock.so");
        let compiled = Command::new("cc").args(["-shared", "-fPIC", "-O2", "-o"]).arg(library).arg(source).status();
        assert!(compiled.unwrap().success(), "cc cannot compile {source}");
        let file = File::create(folder.join("ahead")).unwrap();
        let mut clock = Self { folder, file, ahead: 0 };
        clock.write();
        clock
    }

    pub(crate) fn environment(&self) -> Vec<(String, String)> {
        let path = |name: &str| self.folder.join(name).to_str().unwrap().to_owned();
        vec![("LD_PRELOAD".into(), path("moved_clock.so")), ("MOVED_CLOCK".into(), path("ahead"))]
    }

    /// The seconds since 1970 that the processes read.
    pub(crate) fn now(&self) -> i64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        i64::try_from(now.as_secs()).unwrap() + self.ahead
    }

    /// Moves the clocks to this second since 1970, or a part of a second before it.
    pub(crate) fn move_to(&mut self, second: i64) {
        self.ahead += second - self.now();
        self.write();
    }

    fn write(&mut self) {
        self.file.write_all_at(&self.ahead.to_ne_bytes(), 0).unwrap();
    }
}

impl Drop for MovedClock {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}
