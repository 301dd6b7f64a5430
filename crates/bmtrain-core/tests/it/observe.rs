//! Observations of a forward pass and of the backward pass.

use bmtrain_core::autograd::{Observer, Randomness};
use bmtrain_core::{Ctx, Device, Result, Segment, Tensor, Var, ops};
use std::cell::RefCell;
use std::rc::Rc;

type Values = Vec<f32>;

/// Remembers names, values and gradients.
#[derive(Debug, Default)]
struct Notes(RefCell<Vec<(String, Values, Vec<Values>)>>);

impl Observer for Notes {
    fn value(&self, cx: &Ctx, name: &str, value: &Tensor) -> Result<usize> {
        let mut notes = self.0.borrow_mut();
        notes.push((format!("{}/{name}", cx.site().as_str()), value.to_vec()?, vec![]));
        Ok(notes.len() - 1)
    }

    fn gradient(&self, number: usize, gradient: &Tensor) -> Result<()> {
        self.0.borrow_mut()[number].2.push(gradient.to_vec()?);
        Ok(())
    }
}

#[test]
fn a_named_value_is_seen_with_the_sum_of_its_gradients() {
    let device = Device::cpu(1).unwrap();
    let tensor = |values: &[f32]| Tensor::from_slice_in(&device, [values.len()], values, Segment::Activations).unwrap();
    let notes = Rc::new(Notes::default());
    let run = |observed: bool| {
        let mut cx = Ctx::training(&device, Randomness::default());
        if observed {
            cx.set_observer(notes.clone());
        }
        let x = cx.tape().unwrap().input(tensor(&[1.0, -2.0]));
        cx.observe("input", &x).unwrap();
        let double = ops::scale(&cx, &x, 2.0).unwrap();
        let y = cx.at("deep", |cx| {
            cx.observe("double", &double)?;
            let square = ops::mul(cx, &double, &double)?;
            cx.observe("constant", &Var::constant(square.value().clone()))?;
            ops::add(cx, &square, &double)
        });
        let y = y.unwrap();
        cx.observe("loss", &y).unwrap();
        let unused = ops::scale(&cx, &x, 3.0).unwrap();
        cx.observe("unused", &unused).unwrap();
        let seed = tensor(&[1.0, 10.0]);
        let grads = cx.tape().unwrap().backward(&device, vec![(y, seed)], &[&x]).unwrap();
        grads[0].as_ref().unwrap().to_vec::<f32>().unwrap()
    };
    let dx = run(true);
    assert_eq!(dx, run(false), "looking changes nothing");
    let note = |name: &str, value: [f32; 2], gradient: Option<[f32; 2]>| {
        (name.to_owned(), value.to_vec(), gradient.into_iter().map(Vec::from).collect::<Vec<_>>())
    };
    // y = d d + d with d = 2 x: the gradient of d is 2 d + 1 = 5 and -7 times the seed.
    let expected = [
        note("/input", [1.0, -2.0], Some([10.0, -140.0])),
        note("deep/double", [2.0, -4.0], Some([5.0, -70.0])),
        note("deep/constant", [4.0, 16.0], None),
        note("/loss", [6.0, 12.0], Some([1.0, 10.0])),
        note("/unused", [3.0, -6.0], None),
    ];
    assert_eq!(*notes.0.borrow(), expected);
    assert_eq!(dx, [10.0, -140.0]);
}

#[test]
fn what_is_not_on_this_tape_is_refused() {
    let device = Device::cpu(1).unwrap();
    let tensor = || Tensor::full_in(&device, [2], bmtrain_core::DType::F32, 1.0, Segment::Activations).unwrap();
    let mut cx = Ctx::gradients(&device);
    let other = Ctx::gradients(&device).tape().unwrap().input(tensor());
    cx.observe("not observed", &other).unwrap();
    cx.set_observer(Rc::new(Notes::default()));
    let error = cx.observe("unknown", &other).unwrap_err().to_string();
    assert!(error.contains("a variable of another tape"), "{error}");
}
