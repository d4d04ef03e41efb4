package manifests

import (
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nodegate/nodegate/gate"
)

// webhookTimeout is short: every write to a governed Node whose result is open
// waits for it when the webhook does not answer.
const webhookTimeout = 2

// Webhook renders the registration of the mutation over HTTPS, for clusters that
// do not use the mutation policies. Without a client config, it names the
// controller's Service; its caBundle is then filled in by whoever manages the
// certificate.
//
// It fails open and is short of time, because a webhook on Nodes that fails
// closed can lock a cluster out of its own repair. Its match conditions keep away
// every write that it would not change. In other modes than enforce it selects
// nothing.
func Webhook(cfg *gate.Configuration, client *admissionregistrationv1.WebhookClientConfig) (*unstructured.Unstructured, error) {
	if client == nil {
		client = &admissionregistrationv1.WebhookClientConfig{Service: &admissionregistrationv1.ServiceReference{
			Namespace: gate.Namespace, Name: gate.ControllerService, Path: new(gate.WebhookPath),
		}}
	}
	hook := admissionregistrationv1.MutatingWebhook{
		Name:                    gate.WebhookRegistration,
		ClientConfig:            *client,
		Rules:                   []admissionregistrationv1.RuleWithOperations{webhookRule()},
		FailurePolicy:           new(admissionregistrationv1.Ignore),
		TimeoutSeconds:          new(int32(webhookTimeout)),
		ReinvocationPolicy:      new(admissionregistrationv1.IfNeededReinvocationPolicy),
		SideEffects:             new(admissionregistrationv1.SideEffectClassNone),
		AdmissionReviewVersions: []string{"v1"},
		MatchConditions:         webhookConditions(cfg.Gates),
	}
	if narrowed := matchInMode(cfg.Mode); narrowed != nil {
		hook.ObjectSelector = narrowed.ObjectSelector
	}
	objects, err := toUnstructured([]runtime.Object{&admissionregistrationv1.MutatingWebhookConfiguration{
		TypeMeta: metav1.TypeMeta{
			APIVersion: admissionregistrationv1.SchemeGroupVersion.String(), Kind: "MutatingWebhookConfiguration",
		},
		ObjectMeta: metav1.ObjectMeta{
			Name: gate.WebhookRegistration,
			Labels: map[string]string{
				"app.kubernetes.io/name":    "nodegate",
				"app.kubernetes.io/part-of": "nodegate",
			},
		},
		Webhooks: []admissionregistrationv1.MutatingWebhook{hook},
	}})
	if err != nil {
		return nil, err
	}
	return objects[0], nil
}

// Uncertified reports whether no API server can call a webhook of a registration, for
// nothing says whom to trust.
func Uncertified(registration *unstructured.Unstructured) (bool, error) {
	hooks, _, err := unstructured.NestedSlice(registration.Object, "webhooks")
	for _, hook := range hooks {
		fields, ok := hook.(map[string]any)
		if !ok {
			continue
		}
		if bundle, _, _ := unstructured.NestedString(fields, "clientConfig", "caBundle"); bundle == "" {
			return true, err
		}
	}
	return false, err
}

func webhookRule() admissionregistrationv1.RuleWithOperations {
	return rule("nodes", admissionregistrationv1.Create, admissionregistrationv1.Update).RuleWithOperations
}

// webhookConditions let through what some gate may have to arm: the Node is
// governed by it, and the result lacks its taint. Of a kubelet's writes only
// CREATE can be mutated.
func webhookConditions(gates []gate.Gate) []admissionregistrationv1.MatchCondition {
	open := make([]string, len(gates))
	for i := range gates {
		open[i] = "(" + lines("&&", governed("object", gates[i].NodeSelector),
			"!"+taints("object")+".exists(t, "+isTaint(&gates[i])+")") + ")"
	}
	if len(open) == 0 {
		open = []string{"false"}
	}
	return []admissionregistrationv1.MatchCondition{
		{Name: "not-an-update-of-a-kubelet", Expression: "request.operation == 'CREATE' || !" + kubelet},
		{Name: "open", Expression: strings.Join(open, "\n|| ")},
	}
}
