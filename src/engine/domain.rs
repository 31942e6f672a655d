//! [`Domain`]: what policies decide on.

use std::fmt;
use std::marker::PhantomData;

/// What policies decide on: HTTP requests ([`Http`]), or values of a type of the program ([`On`]).
///
/// Implemented for these two.
pub trait Domain: Sized + 'static {
    /// What the options of a policy read: its key, its conditions, its cost.
    type Subject<'a>;
    /// What is known once the subject was served: the head of a response, for HTTP.
    type Outcome<'a>;
    /// Why a subject is rejected.
    type Rejection: fmt::Debug + Send + Unpin;

    /// What becomes of subjects whose limiter fails, if its policy fails closed: for the log.
    #[doc(hidden)]
    const FAILED_CLOSED: &'static str;
}

/// HTTP requests, which policies read as [`RequestHead`](crate::RequestHead).
#[derive(Clone, Copy, Debug)]
pub struct Http;

/// Values of type `T`: messages, jobs, commands. `O` is what is known once they were processed.
#[derive(Debug)]
pub struct On<T, O = ()>(PhantomData<fn(&T, &O)>);

/// A function that reads a subject: an option of a policy.
pub(crate) type Reads<D, T> = Box<dyn Fn(&<D as Domain>::Subject<'_>) -> T + Send + Sync>;

/// A function that reads an outcome.
pub(crate) type ReadsOutcome<D, T> = Box<dyn Fn(&<D as Domain>::Outcome<'_>) -> T + Send + Sync>;
