import torch, laptime, time, sys, json, shutil, statistics as st
import torch.nn.functional as F
from laptime.train.networks import build
torch.backends.cudnn.benchmark=False
def bench(name,batch,rounds=8,n=30):
    m=build(name).cuda(); opt=torch.optim.SGD(m.parameters(),1e-3,momentum=.9)
    x=torch.randn(batch,3,224,224,device='cuda'); y=torch.zeros(batch,dtype=torch.long,device='cuda')
    def body(x,y):
        o=m(x); o=o if isinstance(o,torch.Tensor) else o[0]
        l=F.cross_entropy(o,y); l.backward(); opt.step(); opt.zero_grad()
    for _ in range(10): body(x,y)
    torch.cuda.synchronize()
    R={'bare':[], 'every':[], 'budget':[]}
    for r in range(rounds):
        for v in ('bare','every','budget'):
            if v=='bare':
                for _ in range(3): body(x,y)
                torch.cuda.synchronize(); t=time.perf_counter()
                for _ in range(n): body(x,y)
                torch.cuda.synchronize(); R[v].append((time.perf_counter()-t)/n)
            else:
                shutil.rmtree('/tmp/rr',ignore_errors=True)
                with laptime.record(m,opt,out='/tmp/rr',every_step=v=='every') as rec:
                    for i,b in enumerate(rec.steps([(x,y)]*(n+8))):
                        if i==7: torch.cuda.synchronize(); t=time.perf_counter()
                        body(*b)
                        if i==n+6: torch.cuda.synchronize(); R[v].append((time.perf_counter()-t)/n)
    med={k:st.median(v) for k,v in R.items()}
    s=rec.run.summary
    print(f"{name} b{batch}: bare {med['bare']*1e3:.3f} ms every {(med['every']/med['bare']-1)*100:+.2f}% budget {(med['budget']/med['bare']-1)*100:+.2f}% named {s['named_share']:.4f} unexpl {s['unexplained_share']:.1e} hostclock {s['host_clock_ratio']:.5f} share {s['budget']['share']:.2f}", flush=True)
    return m,opt,x,y
for name,b in (('alexnet',16),('alexnet',64),('alexnet',128),('vgg11',12),('resnet50',32),('googlenet',64)):
    bench(name,b)
# profile of python overhead on alexnet b16 every step
import cProfile,pstats
m=build('alexnet').cuda(); opt=torch.optim.SGD(m.parameters(),1e-3,momentum=.9)
x=torch.randn(16,3,224,224,device='cuda'); y=torch.zeros(16,dtype=torch.long,device='cuda')
shutil.rmtree('/tmp/rp',ignore_errors=True)
with laptime.record(m,opt,out='/tmp/rp',every_step=True) as rec:
    it=rec.steps([(x,y)]*230); pr=cProfile.Profile()
    for i,(a,b) in enumerate(it):
        if i==20: pr.enable()
        l=F.cross_entropy(m(a),b); l.backward(); opt.step(); opt.zero_grad()
    pr.disable()
pstats.Stats(pr).sort_stats('tottime').print_stats(25)
