//! What finished sequences leave behind, so that later prompts need not be computed again.
