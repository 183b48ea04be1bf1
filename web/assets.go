package web

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"net/http"
	"path"
	"strings"
)

//go:embed assets
var assets embed.FS

// asset is a file that browsers get.
type asset struct {
	body    []byte
	kind    string
	version string // begins the file's SHA-256, and ends its URL
}

// assetFiles are the files that browsers get, by name. Licences are not among them.
var assetFiles = func() map[string]asset {
	kinds := map[string]string{
		".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml",
	}
	files := map[string]asset{}
	entries, err := assets.ReadDir("assets")
	if err != nil {
		panic(err) // embedded: it is there
	}
	for _, e := range entries {
		kind, ok := kinds[path.Ext(e.Name())]
		if !ok {
			continue
		}
		body, err := assets.ReadFile("assets/" + e.Name())
		if err != nil {
			panic(err)
		}
		sum := sha256.Sum256(body)
		files[e.Name()] = asset{body, kind, hex.EncodeToString(sum[:6])}
	}
	return files
}()

// static serves a file. Its URL changes with its content, so browsers may keep it.
func (p *page) static(w http.ResponseWriter, r *http.Request) {
	file, ok := assetFiles[r.PathValue("file")]
	if !ok {
		p.fail(w, r, http.StatusNotFound, "There is no such file.")
		return
	}
	w.Header().Set("Content-Type", file.kind)
	w.Header().Set("ETag", `"`+file.version+`"`)
	w.Header().Set("Cache-Control", "private, no-cache")
	if r.URL.Query().Get("v") == file.version {
		w.Header().Set("Cache-Control", "private, max-age=31536000, immutable")
	}
	if strings.Contains(r.Header.Get("If-None-Match"), file.version) {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	_, _ = w.Write(file.body) // the browser went away
}
