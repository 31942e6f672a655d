//! Enums whose variants have names.

/// Defines an enum whose variants are each followed by a name, and a method that returns the name.
macro_rules! named {
    (
        $(#[$of_enum:meta])*
        $enum_vis:vis enum $enum:ident by $(#[$of_method:meta])* $vis:vis $method:ident {
            $($(#[$of_variant:meta])* $variant:ident = $name:literal,)+
        }
    ) => {
        $(#[$of_enum])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $enum_vis enum $enum {
            $($(#[$of_variant])* $variant,)+
        }

        impl $enum {
            /// All variants, in their order.
            #[allow(dead_code, reason = "not all enums are counted")]
            $vis const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            $(#[$of_method])*
            $vis const fn $method(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }
    };
}

pub(super) use named;
