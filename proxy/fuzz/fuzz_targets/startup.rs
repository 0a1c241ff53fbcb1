//! The first packet of a connection, from anybody who can reach the port.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pgrouting_proxy::server::settings::SettingsRegistry;
use pgrouting_proxy::wire::startup::{
    FirstPacket, SECRET_LEN_MAX, STARTUP_LEN_MAX, packet_len, put_cancel, put_startup, read,
};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(Some(length)) = packet_len(bytes) {
        assert!((8..=STARTUP_LEN_MAX).contains(&length));
    }
    match read(bytes) {
        Ok(FirstPacket::Cancel(key)) => {
            assert!(key.secret.len() <= SECRET_LEN_MAX);
            let mut again = Vec::new();
            put_cancel(&mut again, &key);
            // But for the length, which is not looked at here, the packet is what it was.
            assert_eq!(again[4..], bytes[4..]);
        }
        Ok(FirstPacket::Startup(startup)) => {
            assert!(!startup.user.is_empty() && !startup.database.is_empty());
            assert_eq!(startup.protocol() >> 16, 3);
            assert!(startup.secret_len() <= SECRET_LEN_MAX);
            // What was read and is written again says the same.
            let mut parameters = vec![("user", &*startup.user), ("database", &*startup.database)];
            parameters.extend(startup.parameters.iter().map(|(name, value)| (&**name, &**value)));
            parameters.extend(startup.protocol_options.iter().map(|name| (&**name, "")));
            let mut again = Vec::new();
            put_startup(&mut again, &parameters);
            let Ok(FirstPacket::Startup(mut reread)) = read(&again) else { panic!("not read again") };
            reread.minor_version = startup.minor_version;
            assert_eq!(reread, startup);
            let _ = SettingsRegistry::default().from_startup(&startup.parameters, false);
        }
        Ok(FirstPacket::Ssl | FirstPacket::GssEnc) | Err(_) => {}
    }
});
