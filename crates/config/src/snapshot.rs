//! `[snapshot]`: the file in which budgets outlive a restart.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::error::ConfigError;
use super::format::RawSnapshot;
use super::source::SourceText;
use super::value::duration;
use super::{Config, Route};
use tower_sluice::snapshot::Snapshots;

/// The shortest pause between snapshots, so that the disk gets some rest.
const LEAST: Duration = Duration::from_millis(100);

const DEFAULT: Duration = Duration::from_secs(10);

/// A configuration's `[snapshot]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotFile {
    path: PathBuf,
    every: Duration,
}

impl SnapshotFile {
    pub(crate) fn parse(source: &SourceText<'_>, raw: RawSnapshot) -> Result<Self, ConfigError> {
        if raw.path.get_ref().is_empty() {
            let problem = "path is empty; write the file for snapshots, or remove [snapshot]";
            return Err(source.error(&raw.path.span(), problem));
        }
        let every = match &raw.every {
            None => DEFAULT,
            Some(text) => {
                let every = duration(source, "every", text)?;
                if every < LEAST {
                    let problem = format!("every = \"{}\" is too often; write 100ms or more", text.get_ref());
                    return Err(source.error(&text.span(), problem));
                }
                every
            }
        };
        Ok(Self { path: raw.path.into_inner().into(), every })
    }

    /// Returns the file's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The time between two snapshots.
    #[must_use]
    pub const fn every(&self) -> Duration {
        self.every
    }
}

impl Config {
    /// Returns the file's `[snapshot]`, if it has one. Your program writes it: [`snapshots`](Self::snapshots) shows
    /// how.
    #[must_use]
    pub const fn snapshot(&self) -> Option<&SnapshotFile> {
        self.snapshot.as_ref()
    }

    /// Returns the snapshots for all routes, each by its first path. They stay valid after a [change](Self::change).
    ///
    /// ```
    /// use tower_sluice_config::Config;
    ///
    /// # let folder = std::env::temp_dir().join(format!("sluice-doc-config-{}", std::process::id()));
    /// # std::fs::create_dir_all(&folder)?;
    /// # let text = format!("snapshot = {{ path = {:?}, every = \"10s\" }}", folder.join("limits.snapshot"));
    /// # let text = text + "\n[[route]]\npath = \"/api\"\n[[route.policy]]\nname = \"p\"\nalgorithm = \"token-bucket\"";
    /// # let text = text + "\nlimit = 10\nper = \"1s\"\n";
    /// let config = Config::parse("limits.toml", &text)?;
    /// if let Some(file) = config.snapshot() {
    ///     let snapshots = config.snapshots();
    ///     // Before the server serves.
    ///     println!("{}", snapshots.load(file.path())?);
    ///     // Each time that `file.every()` has passed, and after the last request, on a thread that may block.
    ///     snapshots.save(file.path())?;
    /// }
    /// # std::fs::remove_dir_all(&folder)?;
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    pub fn snapshots(&self) -> Snapshots {
        let layers = self.routes.iter().filter_map(|route| Some((Route::paths(route)[0].as_str(), route.layer()?)));
        layers.fold(Snapshots::new(), |snapshots, (path, layer)| snapshots.layer(path, layer))
    }
}
