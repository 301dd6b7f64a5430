//! Depends on bmtrain-corpus alone: a token file that is not there is refused with its path.

#[test]
fn a_missing_token_file_is_refused_with_its_path() {
    let refused = bmtrain_corpus::verify("/no/such/corpus".as_ref(), None).expect_err("no file");
    assert!(refused.to_string().contains("/no/such/corpus"), "{refused}");
}
