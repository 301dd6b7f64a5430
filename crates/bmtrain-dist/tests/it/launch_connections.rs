//! Connections between ranks: memory, TCP, MPI and NCCL, and the address where ranks meet.

use crate::launch::{OPEN_MPI, SRUN, TORCHRUN, detect, detect_with};

#[test]
fn ranks_are_connected_through_memory_on_one_host_and_by_mpi_or_tcp_on_several() {
    use bmtrain_dist::launch::Connection::{Host, Mpi, Tcp};
    let said = |text: &str, asked| detect(text).connection(asked).map_err(|error| error.to_string());
    let two_hosts = OPEN_MPI.replace("LOCAL_SIZE=2", "LOCAL_SIZE=1").replace("LOCAL_RANK=1", "LOCAL_RANK=0");
    assert_eq!(detect(&two_hosts).nodes, 2);
    for one_host in ["", OPEN_MPI, TORCHRUN, "RANK=0 WORLD_SIZE=2"] {
        assert_eq!([None, Some(Host)].map(|asked| said(one_host, asked)), [Ok(Host), Ok(Host)]);
    }
    let refused = |text: &str, asked, word: &str| {
        let message = said(text, asked).unwrap_err();
        assert!(message.contains(word) && !message.contains('\n'), "{message}");
    };
    refused(&two_hosts, Some(Host), "mpirun started 2 ranks on 2 hosts");
    let torchrun = format!("{TORCHRUN} GROUP_WORLD_SIZE=2 WORLD_SIZE=4");
    // The address of rank 0 is known, so ranks with a device each can meet there.
    assert_eq!(said(&torchrun, None), Ok(Tcp));
    refused(&torchrun, Some(Host), "torchrun started 4 ranks on 2 hosts");
    refused(&torchrun.replace("MASTER_ADDR=localhost", "MASTER_ADDR="), None, "set MASTER_ADDR and MASTER_PORT");
    assert_eq!(said(TORCHRUN, Some(Tcp)), Ok(Tcp));
    if cfg!(feature = "mpi") {
        assert_eq!(said(&two_hosts, None), Ok(Mpi));
        assert_eq!([OPEN_MPI, &two_hosts, SRUN].map(|text| said(text, Some(Mpi))), [Ok(Mpi), Ok(Mpi), Ok(Mpi)]);
        refused("", Some(Mpi), "no launcher does not start processes of MPI");
        refused(&torchrun, Some(Mpi), "torchrun does not start processes of MPI; start the program with mpirun");
    } else {
        refused(&two_hosts, None, "build with `--features mpi`");
        refused(OPEN_MPI, Some(Mpi), "built without the feature `mpi`; build it with `--features mpi`");
    }
}

#[test]
fn ranks_with_a_device_each_exchange_by_nccl_and_those_that_share_one_through_the_host() {
    use bmtrain_dist::launch::{Connection, RankDevice, Transport};
    let four = "RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 MASTER_PORT=1";
    let said = |text: &str, asked, device| detect(text).transport(asked, device).map_err(|error| error.to_string());
    let by = |by_nccl| Ok(Transport { hosts: Connection::Host, by_nccl });
    let shared = RankDevice::SharedCuda([0, 2]);
    for asked in [None, Some(Connection::Nccl)] {
        assert_eq!(said(four, asked, RankDevice::Cuda), by(true));
        // There is no other rank.
        assert_eq!(said("", asked, RankDevice::Cuda), by(false));
    }
    for device in [RankDevice::Processors, shared] {
        assert_eq!(said(four, None, device), by(false));
    }
    assert_eq!(said(four, Some(Connection::Host), RankDevice::Cuda), by(false));
    assert_eq!(
        said(four, Some(Connection::Nccl), shared).unwrap_err(),
        "launch: NCCL: it needs a device for each rank, and ranks 0 and 2 share one; choose the device cuda, \
         which gives each rank its own, or leave NCCL out to communicate through the host"
    );
    let refused = said(four, Some(Connection::Nccl), RankDevice::Processors).unwrap_err();
    assert!(refused.contains("this rank computes on processors; choose the device cuda"), "{refused}");
    assert!(detect(four).connection(Some(Connection::Nccl)).is_err());
    // Devices too meet over what connects their hosts.
    let two_hosts = OPEN_MPI.replace("LOCAL_SIZE=2", "LOCAL_SIZE=1").replace("LOCAL_RANK=1", "LOCAL_RANK=0");
    let over_mpi = said(&two_hosts, None, RankDevice::Cuda);
    match cfg!(feature = "mpi") {
        true => assert_eq!(over_mpi, Ok(Transport { hosts: Connection::Mpi, by_nccl: true })),
        false => assert!(over_mpi.unwrap_err().contains("on processors they need mpirun")),
    }
    let two_hosts = format!("{TORCHRUN} GROUP_WORLD_SIZE=2 WORLD_SIZE=4");
    for asked in [None, Some(Connection::Nccl)] {
        let over_tcp = said(&two_hosts, asked, RankDevice::Cuda);
        assert_eq!(over_tcp, Ok(Transport { hosts: Connection::Tcp, by_nccl: true }));
    }
    let build = if cfg!(feature = "mpi") { "" } else { " and a build with `--features mpi`" };
    let processors = format!(
        "launch: several hosts: the ranks compute on processors; torchrun started 4 ranks on 2 hosts; between hosts \
         give each rank a CUDA device of its own (NCCL), or use mpirun{build} for processors"
    );
    assert_eq!(said(&two_hosts, None, RankDevice::Processors), Err(processors.clone()));
    assert_eq!(detect(&two_hosts).require_processors(None).unwrap_err().to_string(), processors);
    detect(TORCHRUN).require_processors(None).unwrap();
    assert!(said(&two_hosts, None, shared).unwrap_err().contains("ranks 0 and 2 share a CUDA device"));

    let threads = detect_with(Some(4), "").unwrap().transport(None, shared).unwrap_err().to_string();
    assert!(threads.contains("ranks 0 and 2 of one process would share a CUDA device"), "{threads}");
}

#[test]
fn ranks_share_a_device_that_is_in_the_same_place_whatever_number_they_call_it_by() {
    use bmtrain_dist::launch::RankDevice;
    let of = |places: &[Option<&str>]| {
        let cards: Vec<String> = places.iter().map(|place| RankDevice::card(*place)).collect();
        RankDevice::of(&cards).map_err(|error| error.to_string())
    };
    let [first, second] = [Some("0000:17:00.0"), Some("0000:65:00.0")];
    assert_eq!(of(&[None, None]), Ok(RankDevice::Processors));
    assert_eq!(of(&[first]), Ok(RankDevice::Cuda), "the only rank");
    assert_eq!(of(&[first, second]), Ok(RankDevice::Cuda));
    assert_eq!(of(&[second, first, second, first]), Ok(RankDevice::SharedCuda([0, 2])));
    // The same place of another host is another device.
    let elsewhere = format!("{} of another host", first.unwrap());
    assert_eq!(RankDevice::of(&[RankDevice::card(first), elsewhere]).unwrap(), RankDevice::Cuda);
    let mixed = of(&[None, first]).unwrap_err();
    assert!(mixed.contains("rank 0 computes on processors, rank 1 on a CUDA device"), "{mixed}");
}

#[test]
fn ranks_of_one_host_meet_at_its_loopback() {
    for text in [TORCHRUN, SRUN, OPEN_MPI, "RANK=0 WORLD_SIZE=2 MASTER_PORT=29500"] {
        let options = detect(text).store([7; 32]).unwrap();
        assert_eq!(options.host, "127.0.0.1");
        assert!(options.bind.unwrap().is_loopback());
        assert!(options.port >= 20_000 && options.recipe == [7; 32]);
    }
    let wide = detect("RANK=0 WORLD_SIZE=2 MASTER_PORT=29500 BMTRAIN_STORE_BIND=0.0.0.0").store([7; 32]).unwrap();
    assert!(wide.bind.unwrap().is_unspecified() && wide.host == "127.0.0.1");
    let named = detect("RANK=0 WORLD_SIZE=2 MASTER_PORT=29500 BMTRAIN_STORE_BIND=127.0.0.9").store([7; 32]).unwrap();
    assert_eq!((named.host.as_str(), named.bind.unwrap().to_string()), ("127.0.0.9", "127.0.0.9".to_owned()));
}

#[test]
fn ranks_of_several_hosts_meet_at_the_masters_address() {
    let launch = detect("RANK=2 WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 MASTER_ADDR=node7 MASTER_PORT=29500");
    let options = launch.store([0; 32]).unwrap();
    assert_eq!((options.host.as_str(), options.port, options.bind), ("node7", 29500, None));
}
