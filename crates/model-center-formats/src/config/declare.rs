//! Declaration of a family's configuration: each field once, with type, default and names in files.

/// Declares a configuration: [`TextConfig`](crate::config::TextConfig), which holds the fields of all families, and the
/// fields of one.
///
/// A field is stated once: its type, its default, the [`Slot`](crate::config::rows::Slot) that reads, checks and writes
/// it, and its names in files as `Hugging Face => ModelCenter`. Names without an arrow apply to both; `required` marks
/// what a Hugging Face file must state. The family itself reads and writes a field without a slot.
///
/// The macro defines the struct, its [`Default`] and its [`ConfigRows`](crate::config::rows::ConfigRows); the family
/// adds [`RowConfig`](crate::config::rows::RowConfig).
///
/// ```
/// use model_center_formats::config::rows::ConfigRows;
/// use model_center_formats::config::TextConfig;
///
/// model_center_formats::model_config! {
///     /// A decoder with key and value heads.
///     pub struct ToyConfig {
///         /// The common fields.
///         text: TextConfig { vocab_size: 50, ..TextConfig::default() };
///         /// Key and value heads.
///         num_heads_kv: usize = 12, KvHeads(required "num_key_value_heads" => "num_heads_kv");
///         /// Whether attention's projections have biases.
///         att_bias: bool = false, Flag("attention_bias" => "att_bias");
///     }
/// }
///
/// assert_eq!(ToyConfig::default().text.vocab_size, 50);
/// assert_eq!(ToyConfig::ROWS[1].model_center, ["att_bias"]);
/// ```
#[macro_export]
macro_rules! model_config {
    (
        $(#[$meta:meta])*
        pub struct $name:ident {
            $(#[$text_meta:meta])*
            text: $text:expr;
            $($(#[$field_meta:meta])* $field:ident: $type:ty = $default:expr $(, $slot:ident($($names:tt)*))?;)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq)]
        pub struct $name {
            $(#[$text_meta])*
            pub text: $crate::config::TextConfig,
            $($(#[$field_meta])* pub $field: $type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                $name { text: $text, $($field: $default,)* }
            }
        }

        impl $crate::config::rows::ConfigRows for $name {
            const ROWS: &'static [$crate::config::rows::Row<Self>] = &[$($(
                $crate::model_config!(@row $slot $field $($names)*),
            )?)*];

            fn text(&self) -> &$crate::config::TextConfig {
                &self.text
            }

            fn text_mut(&mut self) -> &mut $crate::config::TextConfig {
                &mut self.text
            }
        }
    };
    (@row $slot:ident $field:ident required $($names:tt)*) => {
        $crate::config::rows::Row { required: true, ..$crate::model_config!(@row $slot $field $($names)*) }
    };
    (@row $slot:ident $field:ident $($both:literal),*) => {
        $crate::model_config!(@row $slot $field $($both),* => $($both),*)
    };
    (@row $slot:ident $field:ident $($hugging_face:literal),* => $($model_center:literal),*) => {
        $crate::config::rows::Row::new(&[$($hugging_face),*], &[$($model_center),*], |config| {
            $crate::config::rows::Slot::$slot(&mut config.$field)
        })
    };
}
