//! Compares the README's figures with the measured ones: the README quotes the worst figure among several processors.

use std::fs;
use std::path::Path;

/// The figures that the README quotes, for one processor.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Figures {
    /// Nanoseconds per decision on one hot key.
    hot: f64,
    /// How many times faster than governor with a million keys.
    ratio: f64,
    /// Bytes per key.
    bytes: f64,
    /// How long the layer without fields takes, by tower_governor's.
    layer: f64,
}

impl Figures {
    /// Reads the figures from a page of results; the first run on it that has them all is the latest.
    fn on(page: &str) -> Option<Self> {
        let rows = || page.lines().map(|line| line.split('|').map(str::trim).collect::<Vec<_>>());
        let number = |cell: &str| cell.trim_matches('*').split('×').next()?.trim_end_matches('*').parse().ok();
        let decisions = |population| {
            let own = rows().find(|row| row.len() == 14 && row[1..5] == ["ip", population, "1", "admitted"])?;
            Some((number(own[7])?, number(own[8])?))
        };
        let memory = rows().find(|row| row.len() == 6 && row[1..4] == ["ip", "1M", "ours"])?;
        let target = rows().find(|row| row.len() > 4 && row[1] == "layer, admitted, no fields, by `tower_governor`");
        let layer = number(target?[3])?;
        Some(Self { hot: decisions("hot")?.0, ratio: decisions("1M uniform")?.1, bytes: number(memory[4])?, layer })
    }

    /// Returns each figure from the processor on which it is worse.
    fn worse(self, other: Self) -> Self {
        Self {
            hot: self.hot.max(other.hot),
            ratio: self.ratio.min(other.ratio),
            bytes: self.bytes.max(other.bytes),
            // From the processor whose ratio counts.
            layer: if self.ratio < other.ratio { self.layer } else { other.layer },
        }
    }

    fn quoted(self) -> [String; 4] {
        [
            format!("A decision takes {:.0} ns on one hot key", self.hot),
            format!("a key takes {:.0} bytes", self.bytes.ceil()),
            format!("{:.1} times as fast as governor", self.ratio),
            // The row in which we are slower stands beside the one in which we lead.
            format!("takes {:.1} times as long as tower_governor", self.layer),
        ]
    }
}

#[test]
fn the_readme_quotes_the_worst_processor() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let pages = fs::read_dir(root.join("benches/results")).unwrap();
    let texts = pages.map(|page| fs::read_to_string(page.unwrap().path()).unwrap());
    let figures = texts.filter_map(|text| Figures::on(&text)).reduce(Figures::worse).expect("something was measured");
    let readme = fs::read_to_string(root.join("README.md")).unwrap();
    let readme = readme.split_whitespace().collect::<Vec<_>>().join(" ");
    for quote in figures.quoted() {
        assert!(readme.contains(&quote), "the README does not say: {quote}");
    }
}

#[test]
fn each_processor_has_a_results_row() {
    let benches = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches");
    let readme = fs::read_to_string(benches.join("README.md")).unwrap();
    for page in fs::read_dir(benches.join("results")).unwrap() {
        let link = format!("(results/{})", page.unwrap().file_name().to_str().unwrap());
        assert!(readme.contains(&link), "benches/README.md does not link to {link}");
    }
}

#[test]
fn the_first_run_gives_the_figures() {
    let page = "| ip | hot | 1 | admitted | 1.6 | 47.5 | 38.8 | **1.17×** (1.16–1.22) | – | – | – | – |\n\
        | ip | hot | 1 | admitted | ours-dyn | 32.8 | **1.40×** (1.30–1.42) |\n\
        | ip | 1M uniform | 1 | admitted | 1.8 | 387 | 117 | **3.23×** (3.07–3.58) | 19 | 408 | 153 | **2.68×** (2.59–3.16) |\n\
        | ip | 1M | ours | 16.8 |\n\
        | layer, admitted, no fields, by `tower_governor` | ≤ 1.2× | **1.78×** (1.74–1.94) | **not reached** | – |\n\
        | ip | hot | 1 | admitted | 1.7 | 46.0 | 31.3 | **1.49×** (1.41–1.53) | – | – | – | – |\n";
    assert_eq!(Figures::on(page), Some(Figures { hot: 38.8, ratio: 3.23, bytes: 16.8, layer: 1.78 }));
    assert_eq!(Figures::on("| row | instructions |\n"), None);
}

#[test]
fn the_worse_of_two_processors_counts() {
    let one = Figures { hot: 38.8, ratio: 3.23, bytes: 16.8, layer: 1.94 };
    let other = Figures { hot: 30.0, ratio: 2.96, bytes: 16.8, layer: 1.78 };
    assert_eq!(one.worse(other), other.worse(one));
    let quoted = [
        "A decision takes 39 ns on one hot key",
        "a key takes 17 bytes",
        "3.0 times as fast as governor",
        "takes 1.8 times as long as tower_governor",
    ];
    assert_eq!(one.worse(other).quoted(), quoted);
}
