//! Adapters from a learner to the machines that sample.

use warpsmith_fleet::PolicyShelf;

use crate::common::TestFleet;

#[test]
fn a_version_is_announced_fetched_once_and_never_goes_back() {
    let fleet = TestFleet::start();
    let folder = tempfile::tempdir().unwrap();
    let adapter = |text: &str| {
        let path = folder.path().join(text);
        fs_err::write(&path, text.repeat(300_000)).unwrap();
        path
    };
    let (learner, sampler) = (
        PolicyShelf::open(&fleet.servers).unwrap(),
        PolicyShelf::open(&fleet.servers).unwrap(),
    );
    assert_eq!(sampler.latest("student").unwrap(), None);
    let first = learner.announce("student", 1, &adapter("one")).unwrap();
    let second = learner.announce("student", 2, &adapter("two")).unwrap();
    assert_ne!(first.object, second.object);
    // A learner that was left behind does not take the others back.
    assert_eq!(
        learner.announce("student", 1, &adapter("one")).unwrap(),
        second
    );
    assert_eq!(sampler.latest("student").unwrap(), Some(second.clone()));

    let cache = folder.path().join("cache");
    let place = sampler.fetch(&second, &cache).unwrap();
    assert_eq!(
        fs_err::read_to_string(&place).unwrap(),
        "two".repeat(300_000)
    );
    let written = fs_err::metadata(&place).unwrap().modified().unwrap();
    assert_eq!(sampler.fetch(&second, &cache).unwrap(), place);
    assert_eq!(
        fs_err::metadata(&place).unwrap().modified().unwrap(),
        written
    );
}
