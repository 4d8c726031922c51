"""At home: devices and servers find each other, pair with a code, and start at boot (extra `home`)."""
