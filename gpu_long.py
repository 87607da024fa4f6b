import torch, laptime, time, sys, gc, shutil, statistics as st, collections
import torch.nn.functional as F
from laptime.train.networks import build
def bench(name,batch,warm,n,rounds):
    m=build(name).cuda(); opt=torch.optim.SGD(m.parameters(),1e-3,momentum=.9)
    x=torch.randn(batch,3,224,224,device='cuda'); y=torch.zeros(batch,dtype=torch.long,device='cuda')
    def body(x,y):
        o=m(x); o=o if isinstance(o,torch.Tensor) else o[0]
        l=F.cross_entropy(o,y); l.backward(); opt.step(); opt.zero_grad()
    def bare():
        for _ in range(warm): body(x,y)
        out=[]
        for _ in range(4):
            torch.cuda.synchronize(); t=time.perf_counter()
            for _ in range(n//4): body(x,y)
            torch.cuda.synchronize(); out.append((time.perf_counter()-t)/(n//4))
        return st.median(out)
    def rec(**kw):
        shutil.rmtree('/tmp/rr',ignore_errors=True); out=[]
        with laptime.record(m,opt,out='/tmp/rr',**kw) as r:
            for i,b in enumerate(r.steps([(x,y)]*(warm+n+1))):
                if i>=warm and (i-warm)%(n//4)==0:
                    torch.cuda.synchronize(); now=time.perf_counter()
                    if i>warm: out.append((now-t)/(n//4))
                    t=now
                body(*b)
        rec.summary=r.run.summary
        return st.median(out)
    R=collections.defaultdict(list)
    for _ in range(rounds):
        R['bare'].append(bare()); R['every'].append(rec(every_step=True)); R['budget'].append(rec()); 
    b=st.median(R['bare'])
    print(f"{name} b{batch}", {k:(f"{st.median(v)*1e3:.3f}", f"{(st.median(v)/b-1)*100:+.2f}%", [f"{(q/p-1)*100:+.1f}" for q,p in zip(v,R['bare'])]) for k,v in R.items()}, rec.summary['budget'], rec.summary['overhead'] and round(rec.summary['overhead']['ratio'],4), flush=True)
bench('alexnet',16,300,400,5)
bench('resnet50',32,80,120,3)
bench('googlenet',64,80,120,3)
