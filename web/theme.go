package web

import (
	"net/http"
	"slices"
	"strings"
)

// themeCookie has the theme that a viewer chose, so that the choice works without scripts.
const themeCookie = "automutex_theme"

// themeChoice is a button of the theme switch.
type themeChoice struct {
	Value, Name string
	Is          bool
}

var themes = []string{"", "light", "dark"} // as data-theme has them; empty: as the system has it

// themeOf is the theme that the viewer chose.
func themeOf(r *http.Request) string {
	if cookie, err := r.Cookie(themeCookie); err == nil && slices.Contains(themes, cookie.Value) {
		return cookie.Value
	}
	return ""
}

// Themes are the buttons of the switch.
func (f frame) Themes() []themeChoice {
	names := []string{"Auto", "Light", "Dark"}
	all := make([]themeChoice, len(themes))
	for i, theme := range themes {
		all[i] = themeChoice{theme, names[i], f.Theme == theme}
	}
	return all
}

// setTheme keeps the viewer's choice in a cookie and leads back. It changes nothing else, so
// readers may do it.
func (p *page) setTheme(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	theme := r.PostFormValue("theme")
	if !slices.Contains(themes, theme) {
		p.fail(w, r, http.StatusBadRequest, "There is no such theme.")
		return
	}
	path := p.o.RootPath + "/"
	http.SetCookie(w, &http.Cookie{ //nolint:gosec // no secret, and set over plain HTTP where the page is served so
		Name: themeCookie, Value: theme, Path: path, MaxAge: 365 * 24 * 3600, HttpOnly: true, Secure: r.TLS != nil, SameSite: http.SameSiteLaxMode,
	})
	to := p.origin(r.PostFormValue("from"), "")
	w.Header().Set("Location", to)
	w.WriteHeader(http.StatusSeeOther)
}

// viewLink is a link of the navigation.
type viewLink struct{ Path, Name string }

// Views are the links of the navigation.
func (frame) Views() []viewLink {
	return []viewLink{{"", "Overview"}, {"keys", "Keys"}, {"blocked", "Blocked"}, {"rules", "Rules"}, {"processes", "Processes"}, {"unique", "Unique"}, {"doctor", "Doctor"}}
}

// separated is a number with separators between thousands.
func separated(digits string) string {
	var b strings.Builder
	for i, d := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 && digits[i-1] != '-' {
			b.WriteByte(',')
		}
		b.WriteRune(d)
	}
	return b.String()
}
