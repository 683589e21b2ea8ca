//! Masked ids: NIST's FF1 over the 64 bits of an id, and their texts.

use aes::Aes256;
use aes::cipher::{BlockCipherEncrypt, KeyInit};
use insta_ids::id::Id;
use insta_ids::id::mask::{Key, MaskError, Masked, NotAKey};
use proptest::prelude::*;

/// The key of NIST's samples with AES-256.
const KEY: [u8; 32] = [
    0x2B, 0x7E, 0x15, 0x16, 0x28, 0xAE, 0xD2, 0xA6, 0xAB, 0xF7, 0x15, 0x88, 0x09, 0xCF, 0x4F, 0x3C, 0xEF,
    0x43, 0x59, 0xD8, 0xD5, 0x80, 0xAA, 0x4F, 0x7F, 0x03, 0x6D, 0x6F, 0x04, 0xFC, 0x6A, 0x94,
];

/// FF1 as algorithm 7 of SP 800-38G has it, step by step and with its names, for halves of up to 96 bits.
#[allow(clippy::many_single_char_names)]
fn ff1(key: &[u8; 32], radix: u32, tweak: &[u8], numerals: &[u32]) -> Vec<u32> {
    let aes = Aes256::new(key.into());
    let number = |numerals: &[u32]| {
        numerals.iter().fold(0_u128, |number, &numeral| number * u128::from(radix) + u128::from(numeral))
    };
    let (n, u) = (numerals.len(), numerals.len() / 2);
    let v = n - u;
    let (mut a, mut b) = (numerals[..u].to_vec(), numerals[u..].to_vec());
    let most = u128::from(radix).pow(u32::try_from(v).unwrap()) - 1;
    let bytes = (most.ilog2() as usize + 1).div_ceil(8);
    let d = 4 * bytes.div_ceil(4) + 4;
    for round in 0..10 {
        let mut text = vec![1, 2, 1];
        text.extend(&radix.to_be_bytes()[1..]);
        text.extend([10, u8::try_from(u).unwrap()]);
        text.extend(u32::try_from(n).unwrap().to_be_bytes());
        text.extend(u32::try_from(tweak.len()).unwrap().to_be_bytes());
        text.extend(tweak);
        while !(text.len() + bytes + 1).is_multiple_of(16) {
            text.push(0);
        }
        text.push(round);
        text.extend(&number(&b).to_be_bytes()[16 - bytes..]);
        let mut block = [0; 16];
        for part in text.chunks(16) {
            for (to, from) in block.iter_mut().zip(part) {
                *to ^= from;
            }
            let mut encrypted = block.into();
            aes.encrypt_block(&mut encrypted);
            block = encrypted.into();
        }
        let y = block[..d].iter().fold(0_u128, |y, &byte| y << 8 | u128::from(byte));
        let m = if round % 2 == 0 { u } else { v };
        let all = u128::from(radix).pow(u32::try_from(m).unwrap());
        let mut c = (number(&a) + y % all) % all;
        a = b;
        b = vec![0; m];
        for numeral in b.iter_mut().rev() {
            *numeral = u32::try_from(c % u128::from(radix)).unwrap();
            c /= u128::from(radix);
        }
    }
    [a, b].concat()
}

/// The masked id by [`ff1`] and by the base64url of RFC 4648, bit after bit.
fn model(key: &[u8; 32], id: Id) -> String {
    let bits: Vec<_> =
        (0..64).rev().map(|place| u32::from(id.bits().cast_unsigned() >> place & 1 == 1)).collect();
    let bits = [ff1(key, 2, &[], &bits), vec![0; 2]].concat();
    let digits: Vec<_> = ('A'..='Z').chain('a'..='z').chain('0'..='9').chain(['-', '_']).collect();
    bits.chunks(6).map(|six| digits[six.iter().fold(0, |value, &bit| value * 2 + bit as usize)]).collect()
}

/// NIST's samples 7 to 9 of FF1.
#[test]
fn the_model_is_the_standards() {
    for (radix, tweak, plain, cipher) in [
        (10, "", "0123456789", "6657667009"),
        (10, "9876543210", "0123456789", "1001623463"),
        (36, "7777pqrs777", "0123456789abcdefghi", "xs8a0azh2avyalyzuwd"),
    ] {
        let numerals: Vec<_> = plain.chars().map(|digit| digit.to_digit(radix).unwrap()).collect();
        let found: String = ff1(&KEY, radix, tweak.as_bytes(), &numerals)
            .iter()
            .map(|&numeral| char::from_digit(numeral, radix).unwrap())
            .collect();
        assert_eq!(found, cipher);
    }
}

#[test]
fn known_answers() {
    let key = Key::new(&KEY).unwrap();
    for (id, text) in [
        (0, "2-fUtt7ikJA"),
        (1, "Gl0d0e9HUh4"),
        (-1, "fzRaYuiUIgQ"),
        (1_455_920_561_485_265_648, "DAUM9Vk7jDM"),
        (3_610_360_906_330_268_046, "GOHcsdDk-es"),
    ] {
        let id = Id::from_bits(id);
        assert_eq!(key.mask(id).unwrap().to_string(), text);
        assert_eq!(model(&KEY, id), text);
    }
}

#[test]
fn what_is_no_masked_id() {
    for (text, why) in [
        ("", "Its length is 0; that of masked ids is 11."),
        ("Gl0d0e9HUh", "Its length is 10; that of masked ids is 11."),
        ("Gl0d0e9HUh4=", "Its length is 12; that of masked ids is 11."),
        ("Gl0d0e9HU+4", "Character 10 is not among A-Z, a-z, 0-9, - and _."),
        (" Gl0d0e9HUh", "Character 1 is not among A-Z, a-z, 0-9, - and _."),
        ("Gl0d0e9HUé", "Character 10 is not among A-Z, a-z, 0-9, - and _."),
        ("Gl0d0e9HUh5", "Its last character is not among AEIMQUYcgkosw048."),
        ("Gl0d0e9HUh6", "Its last character is not among AEIMQUYcgkosw048."),
        ("Gl0d0e9HUh7", "Its last character is not among AEIMQUYcgkosw048."),
    ] {
        assert_eq!(Masked::parse(text.as_bytes()).expect_err(text).to_string(), why);
    }
    let ends = |last: char| Masked::parse(format!("Gl0d0e9HUh{last}").as_bytes()).is_ok();
    let digits = ('A'..='Z').chain('a'..='z').chain('0'..='9').chain(['-', '_']);
    assert_eq!(digits.filter(|&digit| ends(digit)).collect::<String>(), "AEIMQUYcgkosw048");
    for length in [0, 1, 16, 24, 31, 33, 1000] {
        assert_eq!(Key::new(&vec![7; length]).err(), Some(NotAKey(length)));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn masked_ids_are_the_standards(key: [u8; 32], id: i64) {
        let id = Id::from_bits(id);
        prop_assert_eq!(Key::new(&key).unwrap().mask(id).unwrap().to_string(), model(&key, id));
    }

    /// And so no two ids have the same masked id.
    #[test]
    fn they_lead_back(key: [u8; 32], id: i64) {
        let (key, id) = (Key::new(&key).unwrap(), Id::from_bits(id));
        let text = key.mask(id).unwrap().to_string();
        prop_assert_eq!(text.len(), 11);
        prop_assert_eq!(key.unmask(Masked::parse(text.as_bytes()).unwrap()), Ok(id));
    }

    /// Each id has one text: what is read is written again as it was.
    #[test]
    fn texts_are_read_in_one_way(text in "[A-Za-z0-9_-]{11}") {
        match Masked::parse(text.as_bytes()) {
            Ok(masked) => prop_assert_eq!(masked.to_string(), text),
            Err(why) => prop_assert_eq!(why, MaskError::Surplus),
        }
    }
}
