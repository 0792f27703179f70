//! The strings that a snapshot repeats a million times, with fixed ids.

use crate::pickle::Text;

macro_rules! words {
    ([$($value:literal,)*] $($name:ident = $word:literal,)*) => {
        #[allow(clippy::upper_case_acronyms, non_camel_case_types)]
        enum Index { $($name,)* }

        /// The words, by id.
        pub(super) const WORDS: &[&str] = &[$($value,)* $($word,)*];

        /// How many come before the first key.
        const VALUES: u32 = { let values: &[&str] = &[$($value,)*]; values.len() as u32 };

        $(pub(super) const $name: Text = Text(VALUES + Index::$name as u32);)*
    };
}

words! {
    // Values come first, and of these the actions, in the order of the codes of `Action`.
    [
        "alloc", "free_requested", "free_completed", "segment_alloc", "segment_free",
        "segment_map", "segment_unmap", "oom", "snapshot", "annotate", "N/A",
    ]
    // Keys of a trace entry.
    ACTION = "action",
    ADDR = "addr",
    DEVICE_FREE = "device_free",
    SIZE = "size",
    STREAM = "stream",
    TIME_US = "time_us",
    COMPILE_CONTEXT = "compile_context",
    USER_METADATA = "user_metadata",
    POOL_ID = "pool_id",
    FRAMES = "frames",
    FORWARD_FRAMES = "forward_frames",
    INTERNAL_METADATA = "internal_metadata",
    // Keys and values of segments, blocks and frames.
    DEVICE = "device",
    ADDRESS = "address",
    TOTAL_SIZE = "total_size",
    REQUESTED_SIZE = "requested_size",
    STATE = "state",
    SEGMENT_TYPE = "segment_type",
    SEGMENT_POOL_ID = "segment_pool_id",
    IS_EXPANDABLE = "is_expandable",
    BLOCKS = "blocks",
    FILENAME = "filename",
    LINE = "line",
    NAME = "name",
    STAGE = "stage",
    // Keys of the snapshot itself.
    SEGMENTS = "segments",
    DEVICE_TRACES = "device_traces",
    ALLOCATOR_SETTINGS = "allocator_settings",
    EXTERNAL_ANNOTATIONS = "external_annotations",
    CONF = "PYTORCH_CUDA_ALLOC_CONF",
    CONF_NEW = "PYTORCH_ALLOC_CONF",
    EXPANDABLE_SEGMENTS = "expandable_segments",
    // No metadata.
    EMPTY = "",
}

/// The name of a key, for messages.
pub(super) fn name(word: Text) -> &'static str {
    WORDS[word.0 as usize]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Action;

    #[test]
    fn the_first_words_are_the_actions_in_the_order_of_their_codes() {
        for action in Action::ALL {
            assert_eq!(WORDS[action as usize], action.name());
        }
        assert_eq!(name(ACTION), "action");
    }
}
