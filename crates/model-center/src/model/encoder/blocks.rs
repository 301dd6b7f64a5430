//! The blocks of an encoder as a section of the model: every token sees every token.

use super::{EncoderBatch, EncoderFamily, EncoderModel};
use crate::layer::{Scope, Shared, TransformerBlock};
use crate::model::flow::TextFlow;
use bmtrain_core::Ctx;
use bmtrain_dist::block::RunOptions;
use bmtrain_dist::{Section, TransformerBlockList};
use std::ops::Range;

impl<C: EncoderFamily> Section<EncoderModel<C>> for TransformerBlockList<TransformerBlock> {
    fn len(&self) -> usize {
        TransformerBlockList::len(self)
    }

    fn run(
        &self,
        range: Range<usize>,
        flow: TextFlow,
        _batch: &EncoderBatch,
        cx: &mut Ctx,
    ) -> bmtrain_dist::Result<TextFlow> {
        let TextFlow { hidden, padding } = flow;
        let options = RunOptions { range, caches: None, return_hidden: false };
        let shared = Shared::from(Scope::but(padding.as_ref()));
        let output = cx.at("encoder", |cx| TransformerBlockList::run(self, hidden, &shared, options, cx))?;
        Ok(TextFlow { hidden: output.carry, padding })
    }
}
