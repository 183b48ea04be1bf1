#!/bin/bash -eu
# Builds the targets that need no Redis for OSS-Fuzz. Those that start a server are left to the nightly job.
.ci/fuzz/targets | while read -r folder name; do
	case "$name" in FuzzScripts | FuzzUnique | FuzzPayload) continue ;; esac
	compile_native_go_fuzzer "github.com/automutex/automutex/${folder#.}" "$name" "$name"
	if [ -d "$folder/testdata/fuzz/$name" ]; then
		zip -qj "$OUT/${name}_seed_corpus.zip" "$folder/testdata/fuzz/$name"/*
	fi
done
