//! What a finished command did to its session, from its command tag.
//!
//! The text of a statement says more, and it is read before the server gets it; the tag catches what was not read, such
//! as a text that is too long.

use crate::classify::kinds::Kinds;

/// What a finished command did to its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TagEffect {
    /// Nothing that outlives the transaction.
    None,
    /// It may have begun something.
    Begins(Kinds),
    /// It may have ended something.
    Ends(Kinds),
    /// `DISCARD ALL`: every state is gone, prepared statements included.
    DiscardsAll,
    /// `DEALLOCATE ALL`: every prepared statement is gone.
    DeallocatesAll,
}

/// The effect of a command by its tag, as `CommandComplete` carries it. Tags are those of PostgreSQL's
/// `cmdtaglist.h`.
#[must_use]
pub fn tag_effect(tag: &[u8]) -> TagEffect {
    match tag {
        b"SET" | b"RESET" => TagEffect::Begins(Kinds::SETTING),
        b"LISTEN" => TagEffect::Begins(Kinds::LISTEN),
        b"PREPARE" => TagEffect::Begins(Kinds::PREPARE),
        b"LOAD" => TagEffect::Begins(Kinds::LOAD),
        b"DO" | b"CALL" => TagEffect::Begins(Kinds::ASKABLE),
        b"UNLISTEN" => TagEffect::Ends(Kinds::LISTEN),
        b"CLOSE CURSOR" | b"CLOSE CURSOR ALL" => TagEffect::Ends(Kinds::CURSOR),
        b"DEALLOCATE" => TagEffect::Ends(Kinds::ASKABLE),
        b"DISCARD TEMP" => TagEffect::Ends(Kinds::TEMP),
        b"DISCARD ALL" => TagEffect::DiscardsAll,
        b"DEALLOCATE ALL" => TagEffect::DeallocatesAll,
        _ if tag.starts_with(b"DROP ") => TagEffect::Ends(Kinds::TEMP),
        _ => TagEffect::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_tell_what_they_can() {
        for (tag, effect) in [
            (&b"SELECT 1"[..], TagEffect::None),
            (b"INSERT 0 1", TagEffect::None),
            (b"SET", TagEffect::Begins(Kinds::SETTING)),
            (b"SET CONSTRAINTS", TagEffect::None),
            (b"PREPARE TRANSACTION", TagEffect::None),
            (b"DECLARE CURSOR", TagEffect::None),
            (b"DISCARD ALL", TagEffect::DiscardsAll),
            (b"DEALLOCATE ALL", TagEffect::DeallocatesAll),
            (b"DROP TABLE", TagEffect::Ends(Kinds::TEMP)),
            (b"", TagEffect::None),
        ] {
            assert_eq!(tag_effect(tag), effect, "{}", String::from_utf8_lossy(tag));
        }
    }
}
