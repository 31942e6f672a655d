//! `nfkc_casefold_trim`: one spelling for identities as typed.

use caseless::Caseless;
use unicode_normalization::UnicodeNormalization;

/// Normalises an identity as typed (a login name, an email address), so that its spellings become one: white space
/// around it, case, and compatibility forms such as full-width letters and ligatures (crate feature `unicode`).
///
/// ```
/// use tower_sluice::key::{key_fn, nfkc_casefold_trim};
///
/// # #[derive(Clone)]
/// # struct Login { name: String }
/// let key = key_fn(|head| head.extensions().get::<Login>().map(|login| nfkc_casefold_trim(&login.name)));
/// assert_eq!(nfkc_casefold_trim(" ＡLICE@Example.com\u{a0}"), "alice@example.com");
/// ```
///
/// Use it for identities that are counted *before* the account lookup, such as login attempts. After the lookup, key on
/// the account number. The lookup must normalise in the same way: if two spellings are two accounts there, the accounts
/// share a budget here. If it ignores more (invisible characters, dots in the local part), one account has several
/// budgets.
///
/// Nothing is normalised implicitly: an API key in other letters is another key.
///
/// # Cost
///
/// Linear in the length, with some allocations. Limit the input's length first.
///
/// # Source
///
/// Definition 146 of the Unicode Standard (section 3.13.5, compatibility caseless match), then NFKC, and `White_Space`
/// trimmed at both ends. Characters with the property `Default_Ignorable_Code_Point` stay.
#[must_use]
pub fn nfkc_casefold_trim(text: &str) -> String {
    let folded: String = text.nfd().default_case_fold().nfkd().default_case_fold().nfkc().collect();
    folded.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn sixty_four_spellings_are_one() {
        let spellings = (0..64_u32).map(|bits| {
            let full_width = bits & 1 != 0;
            let name = "alice@ﬁsh.example".char_indices().map(|(i, char)| match char {
                'a' if full_width => 'Ａ',
                _ if bits >> (1 + i % 4) & 1 != 0 => char.to_ascii_uppercase(),
                _ => char,
            });
            let end = if bits & 32 == 0 { "" } else { " \t\u{3000}\u{a0}" };
            end.to_owned() + &name.collect::<String>() + end
        });
        let spellings: HashSet<_> = spellings.collect();
        assert_eq!(spellings.len(), 64);
        let keys: HashSet<_> = spellings.iter().map(|text| nfkc_casefold_trim(text)).collect();
        assert_eq!(keys, HashSet::from(["alice@fish.example".to_owned()]));
    }

    /// Different names stay apart.
    #[test]
    fn normalisation_is_idempotent() {
        for (text, expected) in [
            ("Straße", "strasse"),
            ("STRASSE", "strasse"),
            ("\u{c5}ngstro\u{308}m", "\u{e5}ngstr\u{f6}m"),
            ("\u{212b}ngstr\u{f6}m", "\u{e5}ngstr\u{f6}m"),
            ("ΜΆΪΟΣ", "μάϊοσ"),
            ("\u{b4}x", "\u{301}x"),
            ("", ""),
            ("  ", ""),
            ("a b", "a b"),
        ] {
            let once = nfkc_casefold_trim(text);
            assert_eq!(once, expected, "{text}");
            assert_eq!(nfkc_casefold_trim(&once), once, "{text}");
        }
        assert_ne!(nfkc_casefold_trim("alice"), nfkc_casefold_trim("аlice"), "the second is Cyrillic");
    }
}
