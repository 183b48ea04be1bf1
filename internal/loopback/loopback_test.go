package loopback

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestOnly(t *testing.T) {
	t.Parallel()
	page := Only(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
	for host, want := range map[string]int{
		"localhost": http.StatusNoContent, "localhost:8081": http.StatusNoContent, "127.0.0.1:8081": http.StatusNoContent,
		"[::1]:8081": http.StatusNoContent, "rebound.example:8081": http.StatusMisdirectedRequest, "": http.StatusMisdirectedRequest,
		"127.0.0.1.example": http.StatusMisdirectedRequest, "10.0.0.1": http.StatusMisdirectedRequest,
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Host = host
		answer := httptest.NewRecorder()
		if page.ServeHTTP(answer, r); answer.Code != want {
			t.Errorf("a request to %q is answered %d, want %d", host, answer.Code, want)
		}
		if refused := strings.Contains(answer.Body.String(), "AUTOMUTEX_WEB_USER"); refused != (want != http.StatusNoContent) {
			t.Errorf("a request to %q is answered %q", host, answer.Body)
		}
	}
}
