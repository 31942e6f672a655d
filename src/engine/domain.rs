//! [`Domain`]: the kind of subjects that policies decide on.

use std::fmt;
use std::marker::PhantomData;

/// The kind of subjects that policies decide on: HTTP requests ([`Http`]), or values of a program's type ([`On`]).
///
/// Implemented for these two types.
pub trait Domain: Sized + 'static {
    /// The subject, which a policy's options read for its key, its conditions and its cost.
    type Subject<'a>;
    /// The outcome, which is known once the subject was served. For HTTP, a response's head.
    type Outcome<'a>;
    /// Why a subject is rejected.
    type Rejection: fmt::Debug + Send + Unpin;

    /// For the log: the fate of subjects whose limiter fails, if its policy fails closed.
    #[doc(hidden)]
    const FAILED_CLOSED: &'static str;
}

/// HTTP requests, which policies read as [`RequestHead`](crate::RequestHead).
#[derive(Clone, Copy, Debug)]
pub struct Http;

/// Values of type `T`, such as messages, jobs or commands. `O` is the outcome, known once they were processed.
#[derive(Debug)]
pub struct On<T, O = ()>(PhantomData<fn(&T, &O)>);

/// A function that reads a subject, for a policy option.
pub(crate) type Reads<D, T> = Box<dyn Fn(&<D as Domain>::Subject<'_>) -> T + Send + Sync>;

/// A function that reads an outcome.
pub(crate) type ReadsOutcome<D, T> = Box<dyn Fn(&<D as Domain>::Outcome<'_>) -> T + Send + Sync>;
