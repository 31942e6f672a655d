//! Prints the table for the contenders that need no other crate than tower; see the library.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    tower_sluice_overload::main(std::env::args().skip(1), tower_sluice_overload::contenders::contenders())
}
