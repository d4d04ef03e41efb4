package webhook

import (
	"bytes"
	"encoding/json"
	"net/http"

	admissionv1 "k8s.io/api/admission/v1"
)

// failOpen turns an AdmissionReview that allows nothing, with which the library
// answers what it or the handler cannot read, into an HTTP error of the same code.
// That is a failed call, which an API server treats by the registration's failure
// policy; the review would refuse the write whatever the policy says, and a
// registration that is too wide would stop a cluster.
func failOpen(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := &answer{ResponseWriter: w}
		next.ServeHTTP(answer, r)
		var review admissionv1.AdmissionReview
		if err := json.Unmarshal(answer.body.Bytes(), &review); err != nil || review.Response == nil {
			http.Error(w, "there is no answer", http.StatusInternalServerError)
			return
		}
		if result := review.Response.Result; !review.Response.Allowed && result != nil {
			http.Error(w, result.Message, int(result.Code))
			return
		}
		_, _ = w.Write(answer.body.Bytes()) // who does not read it goes without
	})
}

// answer keeps what is written until it is known what it says.
type answer struct {
	http.ResponseWriter
	body bytes.Buffer
}

func (a *answer) Write(p []byte) (int, error) { return a.body.Write(p) }
